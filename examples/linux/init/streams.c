// SPDX-License-Identifier: GPL-2.0
/*
 * UDP_STREAM and SCTP_STREAM_MANY of netperf, over the loopback interface: one task sends as fast
 * as it can, another on the next CPU receives. What arrives counts; UDP may lose the rest.
 */
#include "init.h"
#include <arpa/inet.h>
#include <errno.h>
#include <linux/sctp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define UDP_BYTES (16 << 10)
#define SCTP_BYTES (10 << 10)
#define ASSOCIATIONS_MAX 4
#define WARM_MS 200
#define WINDOW_MS 1000

struct stream {
	const char *name;
	int type, protocol;
	int senders, bytes;
};

static const struct stream udp = { "udp_stream", SOCK_DGRAM, IPPROTO_UDP, 1, UDP_BYTES };
static const struct stream sctp = {
	"sctp_many", SOCK_SEQPACKET, IPPROTO_SCTP, ASSOCIATIONS_MAX, SCTP_BYTES,
};

static bool loopback_up(void)
{
	int any = socket(AF_INET, SOCK_DGRAM, 0);
	struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	bool up = any >= 0 && !ioctl(any, SIOCSIFFLAGS, &request);

	close(any);
	return up;
}

/*
 * No stream waits for a timer: messages and their acknowledgements go at once, and the receiver has
 * room for what all associations may have under way, of which it else tells a sender for each
 * 64 KiB.
 */
static bool hurry(int socket, const struct stream *stream)
{
	struct sctp_sack_info each = { .sack_freq = 1 };
	int on = 1, room = 8 << 20;

	return stream->protocol != IPPROTO_SCTP ||
	       (!setsockopt(socket, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)) &&
		!setsockopt(socket, IPPROTO_SCTP, SCTP_NODELAY, &on, sizeof(on)) &&
		!setsockopt(socket, IPPROTO_SCTP, SCTP_DELAYED_SACK, &each, sizeof(each)));
}

/* A bound socket that takes what senders send; its address in `at`. */
static int receiver_socket(const struct stream *stream, struct sockaddr_in *at)
{
	int receiver = socket(AF_INET, stream->type, stream->protocol);
	socklen_t length = sizeof(*at);

	*at = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (receiver < 0 || !hurry(receiver, stream) ||
	    bind(receiver, (struct sockaddr *)at, sizeof(*at)) ||
	    getsockname(receiver, (struct sockaddr *)at, &length) ||
	    (stream->type != SOCK_DGRAM && listen(receiver, ASSOCIATIONS_MAX)))
		return -1;
	return receiver;
}

/* Sends for good, on the first CPU, by each socket in turn. */
static void send_all(const struct stream *stream, const struct sockaddr_in *to)
{
	/* A socket of many associations sends to an address, though it is connected. */
	bool many = stream->type == SOCK_SEQPACKET;
	const struct sockaddr *address = many ? (const struct sockaddr *)to : NULL;
	static char message[64 << 10];
	int sockets[ASSOCIATIONS_MAX];

	pin(0);
	for (int i = 0; i < stream->senders; i++) {
		sockets[i] = socket(AF_INET, stream->type, stream->protocol);
		if (sockets[i] < 0 || !hurry(sockets[i], stream) ||
		    connect(sockets[i], (const struct sockaddr *)to, sizeof(*to)))
			_exit(1);
	}
	for (unsigned long sent = 0;; sent++)
		if (sendto(sockets[sent % stream->senders], message, stream->bytes, MSG_NOSIGNAL, address,
			   many ? sizeof(*to) : 0) < 0 && errno != ENOBUFS && errno != EAGAIN)
			_exit(2);
}

/* Receives for good, on the next CPU, and counts bytes. */
static void receive_all(int receiver, volatile uint64_t *bytes)
{
	static char message[64 << 10];
	long got;

	pin(1);
	while ((got = recv(receiver, message, sizeof(message), 0)) > 0)
		*bytes += got;
	_exit(3);
}

static void measure(const struct stream *stream, long policy, long windows)
{
	volatile uint64_t *bytes = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct sockaddr_in at;
	int receiver = receiver_socket(stream, &at), status;
	pid_t tasks[2];
	bool ended;

	check(stream->name, receiver >= 0, "no socket: %s", strerror(errno));
	if (receiver < 0)
		return;
	fflush(stdout);
	if (!(tasks[0] = fork()))
		receive_all(receiver, bytes);
	if (!(tasks[1] = fork()))
		send_all(stream, &at);
	usleep(WARM_MS * 1000);
	for (long window = 0; window < windows; window++) {
		uint64_t before = *bytes;
		int64_t start = now_ns();

		usleep(WINDOW_MS * 1000);
		printf("= %s_mib_per_s %.2f policy=%ld\n", stream->name,
		       (*bytes - before) / (double)(1 << 20) * 1e9 / (now_ns() - start), policy);
	}
	for (int i = 0; i < 2; i++) {
		ended = waitpid(tasks[i], &status, WNOHANG) != 0;
		check(stream->name, !ended, "task %d ended with %#x", i, status);
		if (!ended) {
			kill(tasks[i], SIGKILL);
			waitpid(tasks[i], &status, 0);
		}
	}
	check(stream->name, *bytes > 0, "nothing arrived");
	close(receiver);
	munmap((void *)bytes, 4096);
}

void streams(void)
{
	long policy = told("pagedepot_policy=", 0), windows = told("depot_windows=", 5);

	check("loopback", loopback_up(), "%s", strerror(errno));
	measure(&udp, policy, windows);
	measure(&sctp, policy, windows);
	books("streams");
}
