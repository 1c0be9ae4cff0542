//! A published message beside its readers.

use std::convert::Infallible;

use loom::sync::Arc;

use crate::publish::board::{Cells, begun, publish, read};
use crate::system::prim::{AtomicU64, Ordering};
use crate::{SKIPS_FENCES, explore};

/// Memory that orders nothing by itself.
struct Memory {
    sequence: AtomicU64,
    message: [AtomicU64; 2],
}

impl Memory {
    fn new() -> Self {
        Memory { sequence: AtomicU64::new(0), message: [AtomicU64::new(0), AtomicU64::new(0)] }
    }
}

impl Cells for Memory {
    type Error = Infallible;
    type Message = [u64; 2];

    fn sequence(&self) -> Result<u64, Infallible> {
        Ok(self.sequence.load(Ordering::Relaxed))
    }

    fn set_sequence(&self, to: u64) -> Result<(), Infallible> {
        self.sequence.store(to, Ordering::Relaxed);
        Ok(())
    }

    fn read(&self) -> Result<[u64; 2], Infallible> {
        Ok([0, 1].map(|cell| self.message[cell].load(Ordering::Relaxed)))
    }

    fn write(&self, message: &[u64; 2]) -> Result<(), Infallible> {
        for (cell, value) in self.message.iter().zip(message) {
            cell.store(*value, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A reader beside a writer of two messages.
fn reads_beside_a_writer() {
    explore(|| {
        let memory = Arc::new(Memory::new());
        let written = memory.clone();
        let writer = loom::thread::spawn(move || {
            for value in [1, 2] {
                let Ok(()) = publish(&*written, || Ok([value; 2]));
            }
        });
        for _ in 0..2 {
            let Ok(seen) = read(&*memory);
            if let Some((sequence, message)) = seen {
                assert_eq!(message, [sequence / 2; 2], "a torn message was read");
            }
        }
        writer.join().unwrap();
        let Ok(last) = read(&*memory);
        assert_eq!(last, Some((4, [2; 2])));
    });
}

#[test]
fn messages_are_read_whole() {
    reads_beside_a_writer();
}

/// The mutant: no fences.
#[test]
#[should_panic(expected = "a torn message was read")]
fn fences_are_needed() {
    SKIPS_FENCES.set(true);
    reads_beside_a_writer();
}

/// A reader that does something and then looks, beside a writer of two messages about it.
fn a_look_beside_a_writer() {
    explore(|| {
        let shared = Arc::new((Memory::new(), AtomicU64::new(0)));
        let written = shared.clone();
        let writer = loom::thread::spawn(move || {
            let (memory, done) = &*written;
            for _ in 0..2 {
                let Ok(()) = publish(memory, || Ok([done.load(Ordering::Relaxed); 2]));
            }
        });
        let (memory, done) = &*shared;
        done.store(1, Ordering::Relaxed);
        let Ok(begun) = begun(memory);
        let check = || {
            let Ok(seen) = read(memory);
            if let Some((_, message)) = seen.filter(|&(sequence, _)| sequence > begun) {
                assert_eq!(message, [1; 2], "it is older than the look");
            }
        };
        check();
        writer.join().unwrap();
        check();
    });
}

#[test]
fn what_was_begun_before_a_look_is_no_answer_to_it() {
    a_look_beside_a_writer();
}

/// The mutant: no fences.
#[test]
#[should_panic(expected = "it is older than the look")]
fn looks_need_fences() {
    SKIPS_FENCES.set(true);
    a_look_beside_a_writer();
}
