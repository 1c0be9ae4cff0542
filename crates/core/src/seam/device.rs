//! The device that free pageblocks are reported to, and that requests ask for them again.

use crate::alloc::Allocator;
use crate::store::device::{DeviceRegistered, ReportCounts, ReportingDevice, Reports};

/// The place of an allocator's device.
pub struct Device<'m>(&'m Reports<'m>);

impl<'m> Device<'m> {
    /// The place of this allocator's device.
    pub fn of<C>(allocator: &Allocator<'m, C>) -> Self {
        Device(&allocator.globals.reports)
    }

    /// Registers the device, for the allocator's life.
    ///
    /// # Errors
    /// [`DeviceRegistered`].
    pub fn register(&self, device: &'m dyn ReportingDevice) -> Result<(), DeviceRegistered> {
        self.0.register(device)
    }

    /// The device, if there is one.
    pub fn get(&self) -> Option<&'m dyn ReportingDevice> {
        self.0.device()
    }

    /// Counts of pageblocks reported and needed again.
    pub fn counts(&self) -> ReportCounts {
        self.0.counts()
    }
}
