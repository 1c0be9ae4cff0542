//! Slow paths are events of the crate `tracing`.
//!
//! In a process of its own, because the subscriber is the whole process's.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use pagedepot_linux::builder::HighPolicy;
use pagedepot_linux::{Depot, Mode, Order, Scope};
use tracing::field::{Field, Visit};
use tracing::span;

/// The events that came, by message.
#[derive(Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Heard {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "pagedepot"
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn slow_paths_are_heard() {
    let heard = Heard::default();
    let events = heard.0.clone();
    tracing::subscriber::set_global_default(heard).unwrap();
    // What a CPU frees soon exceeds what it may cache.
    let builder = Depot::builder(4 << 20).high(HighPolicy::Fixed(200));
    let depot = builder.per_cpu_locks(true).build().unwrap();
    let mut all = Vec::new();
    while let Ok(page) = depot.page(Order::BASE) {
        all.push(page);
    }
    drop(all);
    depot.drain(Scope::ALL, Mode::Full);
    let events = events.lock().unwrap();
    let count = |what: &str| {
        let message = format!("message={what} ");
        events.iter().filter(|event| event.contains(&message)).count()
    };
    for what in ["refill", "spill", "drain"] {
        assert!(count(what) > 0, "{what}: {events:?}");
    }
    assert_eq!(count("fail"), 1);
    assert!(events.iter().any(|event| event.contains("blocks=64 ")), "{events:?}");
}
