//! The first bytes of a file of statistics: see the table in [`publish`](super).

use pagedepot::{CpuId, Mode, Scope};

use super::error::Defect;

/// The first bytes of every file.
const MAGIC: [u8; 8] = *b"pgdepot\n";
/// Version of the layout of the file and of the snapshot: another number, another reader.
pub(super) const VERSION: u32 = 1;
/// Offset of the snapshot.
pub(super) const MESSAGE_AT: u64 = 4096;
/// A longer snapshot is none that a program writes.
pub(super) const MESSAGE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of what the program writes once.
pub(super) const FIXED_BYTES: usize = 32;
/// Offsets of the sequence number, the length of the snapshot and the answered request.
pub(super) const SEQUENCE_AT: u64 = 32;
pub(super) const LENGTH_AT: u64 = 40;
pub(super) const ANSWERED_AT: u64 = 48;
/// Offset of a request, and its bytes.
pub(super) const REQUEST_AT: u64 = 64;
pub(super) const REQUEST_BYTES: usize = 24;

/// All CPUs, in a request.
const ALL: u64 = u64::MAX;

/// The program that publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProgramId {
    pub pid: u32,
    /// Start of the process, in ticks since the machine booted: tells it from a later one with its
    /// number.
    pub began: u64,
}

impl ProgramId {
    pub fn encode(self) -> [u8; FIXED_BYTES] {
        let mut bytes = [0; FIXED_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.pid.to_le_bytes());
        bytes[24..].copy_from_slice(&self.began.to_le_bytes());
        bytes
    }

    /// Decodes the bytes of a file.
    pub fn decode(bytes: &[u8; FIXED_BYTES]) -> Result<Self, Defect> {
        if bytes[..8] != MAGIC {
            return Err(Defect::Magic);
        }
        let version = u32::from_le_bytes(part(&bytes[8..12]));
        if version != VERSION {
            return Err(Defect::Version { version, known: VERSION });
        }
        let pid = u32::from_le_bytes(part(&bytes[16..20]));
        Ok(ProgramId { pid, began: u64::from_le_bytes(part(&bytes[24..])) })
    }
}

/// Bytes whose number is known.
fn part<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("as many as it takes")
}

/// A reader's request to a program: to take pages back from CPUs' caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Mode of the drain.
    pub mode: Mode,
    /// The CPU whose caches are drained; `None`: all CPUs.
    pub cpu: Option<CpuId>,
}

impl Request {
    pub(super) fn scope(self) -> Scope {
        self.cpu.map_or(Scope::ALL, Scope::cpu)
    }

    pub(super) fn encode(self, number: u64) -> [u8; REQUEST_BYTES] {
        let mode: u64 = match self.mode {
            Mode::Quiet => 1,
            Mode::Full => 2,
            Mode::Handover => 3,
        };
        let cpu = self.cpu.map_or(ALL, |cpu| cpu.get().into());
        let mut bytes = [0; REQUEST_BYTES];
        for (to, from) in bytes.chunks_exact_mut(8).zip([number, mode, cpu]) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        bytes
    }

    /// A request and its number. `None`: there is none, or not one that means anything.
    pub(super) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<(u64, Self)> {
        let number = |at: usize| u64::from_le_bytes(part(&bytes[at..at + 8]));
        let mode = match number(8) {
            1 => Mode::Quiet,
            2 => Mode::Full,
            3 => Mode::Handover,
            _ => return None,
        };
        let cpu = match number(16) {
            ALL => None,
            cpu => Some(CpuId::new(u32::try_from(cpu).ok()?)),
        };
        (number(0) != 0).then_some((number(0), Request { mode, cpu }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_again() {
        let fixed = ProgramId { pid: 4711, began: 1 << 40 };
        assert_eq!(ProgramId::decode(&fixed.encode()), Ok(fixed));
        let mut other = fixed.encode();
        other[8] = 2;
        assert_eq!(ProgramId::decode(&other), Err(Defect::Version { version: 2, known: VERSION }));
        other[0] = b'P';
        assert_eq!(ProgramId::decode(&other), Err(Defect::Magic));
    }

    #[test]
    fn requests_are_read_again_and_nonsense_is_none() {
        for mode in [Mode::Quiet, Mode::Full, Mode::Handover] {
            for cpu in [None, Some(CpuId::new(0)), Some(CpuId::new(u32::MAX))] {
                let request = Request { mode, cpu };
                assert_eq!(Request::decode(&request.encode(7)), Some((7, request)));
            }
        }
        assert_eq!(Request::decode(&[0; REQUEST_BYTES]), None);
        assert_eq!(Request::decode(&[0xa5; REQUEST_BYTES]), None);
        let mut large = Request { mode: Mode::Full, cpu: None }.encode(1);
        large[16] = 0;
        assert_eq!(Request::decode(&large), None);
    }
}
