//! The features of an allocator that have met in a run.
//!
//! Two features meet when one begins while the other is at work, as a call or as a state; or when
//! they come one directly after the other to the same frames. A call that may come to nothing is an
//! [`Attempt`], and counts if it succeeds. All counts are relaxed, so that they order nothing
//! between the threads that a sanitizer watches.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::rng::Rng;

/// Features, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set(pub u64);

impl Set {
    pub const NONE: Set = Set(0);

    pub fn and(self, other: impl Into<Set>) -> Set {
        Set(self.0 | other.into().0)
    }

    pub fn and_if(self, is: bool, other: impl Into<Set>) -> Set {
        if is { self.and(other) } else { self }
    }

    /// The numbers of its features.
    pub fn numbers(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |number| self.0 >> number & 1 == 1)
    }
}

/// Declares an enumeration of features, each with its name in the table of pairs. Each storm has
/// features of the groups of orders and of the evacuation policies; `Order` and `Evacuation` are in
/// scope.
#[macro_export]
macro_rules! features {
    ($($feature:ident $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Feature { $($feature,)* }

        impl Feature {
            pub const ALL: &'static [Feature] = &[$(Feature::$feature,)*];
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            pub fn of_order(order: Order) -> Feature {
                match order.get() {
                    0 => Feature::Order0,
                    1..=3 => Feature::Orders1To3,
                    4..=8 => Feature::Orders4To8,
                    _ => Feature::Orders9And10,
                }
            }

            /// The policy of a feature that is one; a goal is in percent.
            pub fn policy(self, goal: u8) -> Evacuation {
                match self {
                    Feature::EvacuationOff => Evacuation::Off,
                    Feature::EvacuationGoal => Evacuation::Goal { percent: goal },
                    Feature::EvacuationAdaptive => Evacuation::Adaptive,
                    other => panic!("{other:?} is no policy"),
                }
            }
        }

        impl From<Feature> for $crate::common::meetings::Set {
            fn from(feature: Feature) -> Self {
                Self(1 << feature as u32)
            }
        }
    };
}

/// The pairs that have met so far.
pub struct Meetings {
    /// Features at work, and how many times each.
    active: AtomicU64,
    counts: [AtomicU32; 64],
    /// Number of times that each has begun.
    begun: [AtomicU32; 64],
    /// Features that each feature has met.
    met: [AtomicU64; 64],
    /// Features of pairs that have not met though they should.
    wanted: AtomicU64,
}

impl Meetings {
    pub fn new() -> Self {
        Meetings {
            active: AtomicU64::new(0),
            counts: [const { AtomicU32::new(0) }; 64],
            begun: [const { AtomicU32::new(0) }; 64],
            met: [const { AtomicU64::new(0) }; 64],
            wanted: AtomicU64::new(u64::MAX),
        }
    }

    /// Notes that these features are at work from now on, until the value is dropped.
    pub fn begin(&self, features: impl Into<Set>) -> Active<'_> {
        let features = features.into();
        for number in features.numbers() {
            self.begun[number].fetch_add(1, Ordering::Relaxed);
            if self.counts[number].fetch_add(1, Ordering::Relaxed) == 0 {
                self.active.fetch_or(1 << number, Ordering::Relaxed);
            }
        }
        self.meet(features, Set(self.active.load(Ordering::Relaxed)));
        Active { meetings: self, features }
    }

    /// Begins a call that may come to nothing.
    pub fn attempt(&self) -> Attempt<'_> {
        Attempt {
            meetings: self,
            active: Set(self.active.load(Ordering::Relaxed)),
            begun: self.begun.each_ref().map(|begun| begun.load(Ordering::Relaxed)),
        }
    }

    /// All of one set have met all of the other, and those of one set each other.
    pub fn meet(&self, these: impl Into<Set>, those: impl Into<Set>) {
        let (these, those) = (these.into(), those.into());
        let all = these.and(those).0;
        for number in these.numbers() {
            if self.met[number].load(Ordering::Relaxed) & all != all {
                self.met[number].fetch_or(all, Ordering::Relaxed);
            }
        }
    }

    pub fn have_met(&self, one: usize, other: usize) -> bool {
        let met =
            |one: usize, other: usize| self.met[one].load(Ordering::Relaxed) >> other & 1 == 1;
        met(one, other) || met(other, one)
    }

    /// The pairs of these that have not met. Until it is asked again, their features are preferred.
    pub fn missing(&self, pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let missing = pairs.iter().filter(|pair| !self.have_met(pair.0, pair.1));
        let missing: Vec<_> = missing.copied().collect();
        let wanted = missing.iter().fold(0, |wanted, pair| wanted | 1 << pair.0 | 1 << pair.1);
        self.wanted.store(wanted, Ordering::Relaxed);
        missing
    }

    /// Whether a pair of this feature has not met though it should.
    pub fn wants(&self, feature: impl Into<Set>) -> bool {
        self.wanted.load(Ordering::Relaxed) & feature.into().0 != 0
    }

    /// Chooses among features: mostly one of those whose pairs have not all met.
    pub fn choose<F: Copy + Into<Set>>(&self, rng: &mut Rng, among: &[F]) -> F {
        let wanted: Vec<F> = among.iter().copied().filter(|&one| self.wants(one)).collect();
        let from = if wanted.is_empty() || rng.one_in(4) { among } else { &wanted };
        from[rng.index(from.len())]
    }
}

/// Features at work.
pub struct Active<'m> {
    meetings: &'m Meetings,
    features: Set,
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        for number in self.features.numbers() {
            if self.meetings.counts[number].fetch_sub(1, Ordering::Relaxed) == 1 {
                self.meetings.active.fetch_and(!(1 << number), Ordering::Relaxed);
            }
        }
    }
}

/// A call that may come to nothing: its features were at work since it began if it succeeds.
pub struct Attempt<'m> {
    meetings: &'m Meetings,
    active: Set,
    begun: [u32; 64],
}

impl<'m> Attempt<'m> {
    /// Notes that these features have been at work since the attempt began, and are until the value
    /// is dropped.
    pub fn succeed(&self, features: impl Into<Set>) -> Active<'m> {
        let features = features.into();
        let has_begun =
            |&(begun, before): &(&AtomicU32, u32)| begun.load(Ordering::Relaxed) != before;
        let begun = self.meetings.begun.iter().zip(self.begun).enumerate();
        let since = begun.filter(|(_, counts)| has_begun(counts));
        let meanwhile = since.fold(self.active, |set, (number, _)| set.and(Set(1 << number)));
        self.meetings.meet(features, meanwhile);
        self.meetings.begin(features)
    }
}

/// The features of the last use of each frame.
pub struct LastUses {
    first: u32,
    uses: Vec<AtomicU64>,
}

impl LastUses {
    /// Makes the last uses of the frames from a first one on.
    pub fn new(first: u32, frames: u32) -> Self {
        LastUses { first, uses: (0..frames).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The features of a use have met those of the last one of the same frames.
    pub fn note(&self, meetings: &Meetings, start: u32, frames: u32, via: Set) {
        for at in [start, start + frames - 1] {
            let last = self.uses[(at - self.first) as usize].swap(via.0, Ordering::Relaxed);
            meetings.meet(via, Set(last));
        }
    }
}
