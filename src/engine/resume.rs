//! Who has waited goes on: for room, or for others to read what its prompt begins with.

use super::Engine;
use kvas_backend::DeviceError;

impl Engine {
    /// Who made room for others goes on as soon as there is room again.
    pub(super) fn resume(&mut self) -> Result<(), DeviceError> {
        while let Some(id) = self.scheduler.resumable(&self.memory) {
            let tokens = self.scheduler.get(id).tokens.clone();
            self.reload_prefix((id, 0), &tokens);
            let reuse = self.scheduler.resume(&mut self.memory, id);
            self.apply(&[reuse.work])?;
        }
        Ok(())
    }

    /// Prompts that waited for others to read what they begin with go on from there.
    pub(super) fn follow(&mut self) -> Result<(), DeviceError> {
        while let Some(id) = self.scheduler.arrived(&self.memory) {
            let rewindable = self.runner.rewindable(self.memory.slot(id));
            let reuse = self.scheduler.follow(&mut self.memory, (id, rewindable));
            self.apply(&[reuse.work])?;
            if let Some(job) = self.jobs.get_mut(&id) {
                job.begins_with(reuse.cached as usize, reuse.miss);
            }
        }
        Ok(())
    }
}
