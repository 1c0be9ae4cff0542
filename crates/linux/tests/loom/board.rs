//! A published message beside its readers.

use std::convert::Infallible;

use loom::sync::Arc;

use crate::SKIPS_FENCES;
use crate::board::{Cells, publish, read};
use crate::prim::{AtomicU64, Ordering};

/// Memory that orders nothing by itself.
struct Memory {
    sequence: AtomicU64,
    message: [AtomicU64; 2],
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
fn explore() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(|| {
        let memory = Arc::new(Memory {
            sequence: AtomicU64::new(0),
            message: [AtomicU64::new(0), AtomicU64::new(0)],
        });
        let written = memory.clone();
        let writer = loom::thread::spawn(move || {
            for value in [1, 2] {
                let Ok(()) = publish(&*written, &[value; 2]);
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
    explore();
}

/// The mutant: no fences.
#[test]
#[should_panic(expected = "a torn message was read")]
fn fences_are_needed() {
    SKIPS_FENCES.set(true);
    explore();
}
