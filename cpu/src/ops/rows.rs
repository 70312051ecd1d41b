//! Ops that move rows: embedding and gathering.

use crate::{
    machine::Machine,
    pool::{Place, Tiles},
};
use kvas_backend::op;

impl Machine {
    pub(crate) fn embed(&mut self, op: &op::Embed) {
        let (width, len) = (self.columns(op.out), self.len(op.out));
        let mut out = self.take(op.out);
        let (table, tokens) = (&self.matrices[op.table.0 as usize], self.step.tokens());
        let vocab = table.rows();
        let tasks = (Place::of(len), tokens.len());
        self.pool.share(tasks, Tiles::chunks(&mut out[..len], width), |row, mut out| {
            let token = tokens[row] as usize;
            assert!(token < vocab, "token {token} of a vocabulary of {vocab}");
            table.dequantise(token, out.row_mut(0));
            if op.scale != 1.0 {
                out.row_mut(0).iter_mut().for_each(|x| *x *= op.scale);
            }
        });
        self.put(op.out, out);
    }

    pub(crate) fn gather_rows(&mut self, op: &op::GatherRows) {
        let width = self.columns(op.out);
        let mut out = self.take(op.out);
        let x = &self.acts[op.x.0 as usize];
        for (out, row) in out.chunks_exact_mut(width).zip(self.step.outputs()) {
            out.copy_from_slice(&x[*row as usize * width..][..width]);
        }
        self.put(op.out, out);
    }
}
