//! Sockets of this machine: the kernel copies each message from the sender's buffer, and to the
//! receiver's.
//!
//! | exchange | sockets |
//! |---|---|
//! | UDP_STREAM | UDP over the loopback interface |
//! | SCTP_STREAM_MANY | Unix datagrams: several senders' sockets, in turn, to one receiver's |
//!
//! Most kernels lack SCTP, or forbid its module. Unix datagrams keep what matters here: whole
//! messages, in order, none lost, many associations with one receiving socket.
//!
//! At most [`IN_FLIGHT`] messages are under way, which fit the receiver's socket buffer: netperf
//! lets UDP lose the others, and here each lost message would be a buffer that no receiver frees.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pagedepot::Pfn;
use rustix::net::sockopt::{set_socket_recv_buffer_size, socket_recv_buffer_size};

use super::channel::{Channel, Words};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::barrier::Waiter;

/// Messages between a sender and its receiver at most. A Unix socket queues ten.
pub const IN_FLIGHT: u32 = 8;
/// Associations of a sender of SCTP_STREAM_MANY.
const ASSOCIATIONS: usize = 4;
/// Bytes that the kernel charges a socket for a datagram of 16 KiB, rounded up.
const CHARGED_BYTES: usize = 40 << 10;
/// Time after which a message that does not come is lost.
const LOST_AFTER: Duration = Duration::from_secs(20);

/// A socket for whole messages.
trait Socket: Send + Sync {
    fn send(&self, bytes: &[u8]) -> io::Result<usize>;
    fn receive(&self, bytes: &mut [u8]) -> io::Result<usize>;
}

macro_rules! sockets {
    ($($socket:ty),*) => {$(
        impl Socket for $socket {
            fn send(&self, bytes: &[u8]) -> io::Result<usize> {
                <$socket>::send(self, bytes)
            }

            fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
                self.recv(bytes)
            }
        }
    )*};
}

sockets!(UdpSocket, UnixDatagram);

/// Pairs of sockets for the streams.
pub struct Sockets {
    senders: Vec<Box<dyn Socket>>,
    receiver: Box<dyn Socket>,
    /// Messages so far; the sender's.
    sent: AtomicU64,
    /// Messages so far; the receiver's.
    received: AtomicU64,
}

impl Sockets {
    /// One UDP socket to another.
    ///
    /// # Errors
    /// Says what the system refuses.
    pub fn udp() -> Result<Self, Failure> {
        let open = || -> io::Result<(UdpSocket, UdpSocket, usize)> {
            let [sender, receiver] = [
                UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?,
                UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?,
            ];
            sender.connect(receiver.local_addr()?)?;
            receiver.set_read_timeout(Some(LOST_AFTER))?;
            // Limited by net.core.rmem_max, without an error.
            set_socket_recv_buffer_size(&receiver, CHARGED_BYTES * IN_FLIGHT as usize)?;
            let room = socket_recv_buffer_size(&receiver)?;
            Ok((sender, receiver, room))
        };
        let (sender, receiver, room) = open().map_err(|error| {
            refused("UDP", &error, "is the interface lo up, and may this sandbox use it?")
        })?;
        let needed = CHARGED_BYTES * IN_FLIGHT as usize;
        if room < needed {
            return Err(Failure::Run(format!(
                "a UDP socket here takes {room} bytes, and {needed} are under way: raise \
                 net.core.rmem_max to {needed}"
            )));
        }
        Ok(Self::new(vec![Box::new(sender)], Box::new(receiver)))
    }

    /// Several Unix sockets to another.
    ///
    /// # Errors
    /// Says what the system refuses.
    pub fn many() -> Result<Self, Failure> {
        let open = || -> io::Result<(Vec<Box<dyn Socket>>, UnixDatagram)> {
            let (receiver, at) = bound()?;
            receiver.set_read_timeout(Some(LOST_AFTER))?;
            let mut senders = Vec::<Box<dyn Socket>>::new();
            for _ in 0..ASSOCIATIONS {
                let sender = UnixDatagram::unbound()?;
                sender.connect_addr(&at)?;
                senders.push(Box::new(sender));
            }
            Ok((senders, receiver))
        };
        let (senders, receiver) = open().map_err(|error| {
            refused("Unix", &error, "does a sandbox forbid them, or is `ulimit -n` reached?")
        })?;
        Ok(Self::new(senders, Box::new(receiver)))
    }

    fn new(senders: Vec<Box<dyn Socket>>, receiver: Box<dyn Socket>) -> Self {
        let [sent, received] = [0, 0].map(AtomicU64::new);
        Sockets { senders, receiver, sent, received }
    }
}

/// A Unix socket at an address of its own that is no file.
fn bound() -> io::Result<(UnixDatagram, SocketAddr)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (process, nth) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let at = SocketAddr::from_abstract_name(format!("pagedepot-{process}-{nth}"))?;
    Ok((UnixDatagram::bind_addr(&at)?, at))
}

fn refused(what: &str, error: &io::Error, hint: &str) -> Failure {
    Failure::Run(format!("cannot open {what} sockets: {error}; {hint}"))
}

/// The result of a call that no signal interrupted.
fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

impl Channel for Sockets {
    const COPIES: bool = true;

    fn send(&self, messages: u64, mut next: impl FnMut() -> (Pfn, u64, Words)) {
        let start = self.sent.load(Ordering::Relaxed);
        for sent in start..start + messages {
            let mut waiter = Waiter::default();
            // Acquire: pairs with the Release in `receive`; the message has left the socket.
            while sent - self.received.load(Ordering::Acquire) >= u64::from(IN_FLIGHT) {
                waiter.pause();
            }
            let (_, _, words) = next();
            // SAFETY: the sender's until the receiver frees it, and written. Any word is bytes.
            let bytes = unsafe {
                std::slice::from_raw_parts(words.cast::<u8>(), size_of::<u64>() * words.len())
            };
            let socket = &self.senders[sent as usize % self.senders.len()];
            let result = uninterrupted(|| socket.send(bytes));
            assert!(
                matches!(result, Ok(written) if written == bytes.len()),
                "a message of {} bytes was not sent: {result:?}",
                bytes.len()
            );
        }
        self.sent.store(start + messages, Ordering::Relaxed);
    }

    fn receive(&self, messages: u64, own: Words, mut take: impl FnMut(Pfn, u64)) {
        // SAFETY: the receiver's own buffer; any bytes are words.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(own.cast::<u8>(), size_of::<u64>() * own.len())
        };
        for _ in 0..messages {
            let result = uninterrupted(|| self.receiver.receive(bytes));
            assert!(
                matches!(result, Ok(read) if read == bytes.len()),
                "a message of {} bytes was not received: {result:?}; did net.core.rmem_max shrink?",
                bytes.len()
            );
            let word = |at: usize| {
                u64::from_ne_bytes(*bytes[size_of::<u64>() * at..].first_chunk().expect("words"))
            };
            let (buffer, number) = (word(0), word(1));
            // Release: see `send`.
            self.received.fetch_add(1, Ordering::Release);
            take(Pfn::new(buffer as u32), number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;

    #[test]
    fn messages_arrive_whole_and_in_order() {
        for sockets in [Sockets::udp(), Sockets::many()] {
            let sockets = match sockets {
                Ok(sockets) => sockets,
                Err(why) => return skip(why),
            };
            const MESSAGES: u64 = 100;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut words, mut number) = ([0_u64; 2048], 0);
                    sockets.send(MESSAGES, || {
                        words.fill(number);
                        words[0] = 2 * number;
                        number += 1;
                        (Pfn::new(0), 0, &raw mut words)
                    });
                });
                let (mut own, mut expected) = ([0_u64; 2048], 0);
                let place: Words = &raw mut own;
                sockets.receive(MESSAGES, place, |buffer, number| {
                    assert_eq!((u64::from(buffer.get()), number), (2 * expected, expected));
                    expected += 1;
                });
                assert_eq!(expected, MESSAGES);
                assert!(own[1..].iter().all(|&word| word == MESSAGES - 1));
            });
        }
    }
}
