//! Ops that move rows.

use crate::{machine::Machine, weights::suffix};
use kvas_backend::{DeviceError, op};

/// Columns a block moves.
const BLOCK: usize = 256;

impl Machine {
    pub(crate) fn embed(&mut self, op: &op::Embed) -> Result<(), DeviceError> {
        let (rows, columns) = (self.rows(op.out), self.columns(op.out));
        let table = self.matrix(op.table);
        self.kernel("rows", &format!("embed_{}", suffix(table.quant)))?
            .grid(rows, columns.div_ceil(BLOCK), 1)
            .block(BLOCK)
            .arg(self.view())
            .arg(table.at())
            .arg(table.units() as u32)
            .arg(self.act(op.out))
            .arg(columns as u32)
            .arg(table.factor)
            .arg(op.scale)
            .early()
            .launch()
    }

    pub(crate) fn gather_rows(&mut self, op: &op::GatherRows) -> Result<(), DeviceError> {
        let (rows, columns) = (self.rows(op.out), self.columns(op.out));
        self.kernel("rows", "gather_rows")?
            .grid(rows, columns.div_ceil(BLOCK), 1)
            .block(BLOCK)
            .arg(self.view())
            .arg(self.act(op.x))
            .arg(self.act(op.out))
            .arg(columns as u32)
            .early()
            .launch()
    }
}
