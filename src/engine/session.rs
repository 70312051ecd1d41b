//! What a session file keeps of the engine's memory: the bytes move page by page and slot by slot.

use super::{ConversationId, Engine, Runner};
use crate::{
    memory::{Kept, Restored, Scope},
    session::{Layout, OpenWriter, Session, Writer, Written},
};
use kvas_backend::{DeviceError, Page, Store, StoreDecl};

/// Snapshots a file keeps, the last ones: the end of the conversation, one token before its last answer, and the end
/// of the turn before. A snapshot of a large model is tens of megabytes, and a chat writes its file after every turn.
const SNAPSHOTS: usize = 3;

impl Engine {
    /// Writes what is kept of the writer's tokens; the bytes of the file.
    pub(super) fn save(&mut self, id: ConversationId, writer: Writer) -> Result<u64, String> {
        let sequence = *self.conversations.get(&id).ok_or("the conversation is closed")?;
        let committed = self.memory.committed(sequence) as usize;
        let own = &self.scheduler.get(sequence).tokens[..committed];
        let mut kept = self.memory.kept_of(sequence, own, writer.tokens());
        kept.states.drain(..kept.states.len().saturating_sub(SNAPSHOTS));
        let positions = kept.states.iter().map(|(position, _)| *position).collect();
        let layout = Layout::new(self.runner.program(), self.runner.limits().kv_type, kept.length, positions);
        let mut open = writer.begin(&layout).map_err(|error| error.to_string())?;
        self.runner.save(&kept, &mut open)?;
        match open.finish().map_err(|error| error.to_string())? {
            Written::File(bytes) => Ok(bytes),
            Written::Memory(session) => Ok(session.bytes()),
        }
    }

    /// Keeps what a session has read.
    pub(super) fn load(&mut self, session: &Session, scope: Scope) -> Result<(), String> {
        let (tokens, context) = (session.tokens(), self.context);
        session.check_program(self.runner.program()).map_err(|error| error.to_string())?;
        if tokens.len() >= context {
            let path = session.path();
            return Err(format!("{path}: {} tokens, expected fewer than the context of {context}", tokens.len()));
        }
        let restored = self.memory.restore(scope, tokens, &session.positions());
        let restored = restored.map_err(|full| format!("{}: {full}", session.path()))?;
        // What gave way to it goes first.
        self.apply(&[]).map_err(|error| error.to_string())?;
        let loaded = self.runner.load(session, &restored);
        if loaded.is_err() {
            // What the prefixes name was not written.
            self.memory.forget();
        }
        loaded.map_err(|error| error.to_string())
    }
}

impl Runner {
    /// Page stores, each with its table.
    fn stores<'a>(&self, tables: &'a [Vec<Page>]) -> Vec<(Store, &'a Vec<Page>)> {
        let stores = self.program().stores.iter().zip(0..);
        let paged = stores.filter(|(decl, _)| matches!(decl, StoreDecl::Pages(_))).map(|(_, at)| Store(at));
        paged.zip(tables).collect()
    }

    pub(super) fn save(&mut self, kept: &Kept, out: &mut OpenWriter) -> Result<(), String> {
        let (mut values, page_size) = (Vec::new(), self.limits().page_size);
        let device = |error: DeviceError| error.to_string();
        for (store, table) in self.stores(&kept.tables) {
            for (page, first) in table.iter().zip((0..kept.length as usize).step_by(page_size)) {
                values.clear();
                let rows = page_size.min(kept.length as usize - first);
                self.backend.save_page(store, *page, rows, &mut values).map_err(device)?;
                out.write(&values).map_err(|error| error.to_string())?;
            }
        }
        for (position, slot) in &kept.states {
            values.clear();
            self.backend.save_slot(*slot, *position, &mut values).map_err(device)?;
            out.write(&values).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn load(&mut self, session: &Session, restored: &Restored) -> Result<(), DeviceError> {
        let (mut values, page_size) = (Vec::new(), self.limits().page_size);
        for (ordinal, (store, table)) in self.stores(&restored.tables).into_iter().enumerate() {
            for (page, first) in table.iter().zip((0..).step_by(page_size)) {
                session.rows(ordinal, first, page_size, &mut values);
                self.backend.load_page(store, *page, &values)?;
            }
        }
        for (position, slot) in &restored.states {
            session.state(*position, &mut values);
            self.backend.load_slot(*slot, *position, &values)?;
        }
        Ok(())
    }
}
