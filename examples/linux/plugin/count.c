// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A plugin of QEMU that counts a virtual CPU's instructions from one function of the guest to
 * another: with several CPUs there is no clock that counts them (-icount). Its arguments:
 *
 *   begin=ADDRESS end=ADDRESS    where a window of the CPU that comes there begins and ends
 *   tell=ADDRESS                 where the sum of the windows so far is written, as a line, and
 *                                begins anew
 *   out=PATH                     the file that gets the lines
 *
 * What interrupts a window is counted, too. QEMU's header comes with no package, so what is used of
 * it is declared here: version 1 of the interface.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void (*exec_fn)(unsigned int cpu, void *data);

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*translated)(uint64_t id,
					   struct qemu_plugin_tb *block));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *block, exec_fn run, int flags,
					  void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *instruction, exec_fn run,
					    int flags, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t nth);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *instruction);

#define EXPORT __attribute__((visibility("default")))
#define CPUS 64

/* Of a CPU: its instructions, and how many there were when its window began, or 0. */
static struct { uint64_t count, began; char line[112]; } of[CPUS];
/* One CPU has windows at a time. */
static uint64_t sum;
static FILE *out;

static void block_runs(unsigned int cpu, void *instructions)
{
	of[cpu].count += (uintptr_t)instructions;
}

static void begin(unsigned int cpu, void *unused)
{
	of[cpu].began = of[cpu].count;
}

static void end(unsigned int cpu, void *unused)
{
	if (of[cpu].began)
		sum += of[cpu].count - of[cpu].began;
	of[cpu].began = 0;
}

static void tell(unsigned int cpu, void *unused)
{
	fprintf(out, "%" PRIu64 "\n", sum);
	fflush(out);
	sum = 0;
}

static struct { const char *name; exec_fn run; uint64_t at; } marks[] = {
	{ "begin=", begin }, { "end=", end }, { "tell=", tell },
};
#define MARKS (sizeof(marks) / sizeof(marks[0]))

static void translated(uint64_t id, struct qemu_plugin_tb *block)
{
	size_t count = qemu_plugin_tb_n_insns(block);

	qemu_plugin_register_vcpu_tb_exec_cb(block, block_runs, 0, (void *)count);
	for (size_t nth = 0; nth < count; nth++) {
		struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, nth);

		for (size_t i = 0; i < MARKS; i++)
			if (qemu_plugin_insn_vaddr(instruction) == marks[i].at)
				qemu_plugin_register_vcpu_insn_exec_cb(instruction, marks[i].run, 0, NULL);
	}
}

EXPORT int qemu_plugin_version = 1;

EXPORT int qemu_plugin_install(uint64_t id, const void *info, int count, char **arguments)
{
	for (int nth = 0; nth < count; nth++) {
		if (!strncmp(arguments[nth], "out=", 4))
			out = fopen(arguments[nth] + 4, "w");
		for (size_t i = 0; i < MARKS; i++)
			if (!strncmp(arguments[nth], marks[i].name, strlen(marks[i].name)))
				sscanf(strchr(arguments[nth], '=') + 1, "%" SCNx64, &marks[i].at);
	}
	if (!out)
		return -1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
