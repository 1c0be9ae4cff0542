/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Barriers of user-mode Linux on x86-64, as strong as x86-64's own. Those it comes with make of
 * each smp_store_release(), and so of each spin_unlock(), an mfence, as none of the kernels that it
 * stands for here would.
 */
#ifndef _ASM_UM_BARRIER_H_
#define _ASM_UM_BARRIER_H_

#include <linux/compiler.h>

#define mb()	asm volatile("mfence" ::: "memory")
#define rmb()	asm volatile("lfence" ::: "memory")
#define wmb()	asm volatile("sfence" ::: "memory")

#define __smp_mb()	asm volatile("lock; addl $0, -4(%%rsp)" ::: "memory", "cc")
#define __smp_rmb()	barrier()
#define __smp_wmb()	barrier()

#define __smp_store_release(at, value)		\
do {						\
	compiletime_assert_atomic_type(*(at));	\
	barrier();				\
	WRITE_ONCE(*(at), value);		\
} while (0)

#define __smp_load_acquire(at)			\
({						\
	typeof(*(at)) loaded = READ_ONCE(*(at));	\
	compiletime_assert_atomic_type(*(at));	\
	barrier();				\
	loaded;					\
})

/* Atomic operations are barriers. */
#define __smp_mb__before_atomic()	do { } while (0)
#define __smp_mb__after_atomic()	do { } while (0)

#include <asm-generic/barrier.h>

#endif
