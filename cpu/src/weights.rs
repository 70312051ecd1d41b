//! Weights as the kernels use them: stored blocks in place, small ones as f32.

use crate::{
    arena::Arena,
    packed::{Panel, float_panel_bytes, pack, pack_floats, panel_bytes},
    pool::{Place, Pool, Tiles},
    simd::panels::ROWS,
};
use kvas_backend::{DeviceError, Factors, WeightData, WeightDecl, WeightFormat, WeightSource};
use kvas_gguf::Quant;

/// How activations are multiplied with a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    /// In 8 bits, with packed blocks.
    Packed,
    /// In f32, with the floats as stored.
    Float,
    /// In f32, with rows that are dequantised first.
    Dequantised,
}

impl Path {
    /// The path of a format.
    pub(crate) fn of(quant: Quant) -> Self {
        if panel_bytes(quant, 0).is_some() {
            Path::Packed
        } else if matches!(quant, Quant::F32 | Quant::F16 | Quant::Bf16) {
            Path::Float
        } else {
            Path::Dequantised
        }
    }
}

/// A weight matrix.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(crate) quant: Quant,
    /// Values of a row.
    pub(crate) columns: usize,
    rows: usize,
    /// Bytes of a row.
    pub(crate) row_bytes: usize,
    data: Data,
    /// Panels of all stacked matrices, and the rows of a matrix; `None` if they are packed as they are used.
    packed: Option<(usize, Arena<u8>)>,
}

/// Where the panels of a weight that is multiplied in 8 bits lie: none spans two of the matrices that are stacked in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panels {
    /// Rows of a matrix.
    pub(crate) rows: usize,
    /// Bytes of a panel.
    pub(crate) bytes: usize,
}

impl Panels {
    /// Of a matrix.
    pub(crate) const fn each(self) -> usize {
        self.rows.div_ceil(ROWS)
    }
}

#[derive(Debug)]
enum Data {
    /// As the source has them: usually a mapped file, never copied.
    Stored(WeightData),
    Floats(Vec<f32>),
    /// Only in panels.
    Packed,
}

impl Matrix {
    /// Gets a weight and checks that it can be computed with.
    pub(crate) fn load(source: &mut dyn WeightSource, decl: &WeightDecl) -> Result<Self, DeviceError> {
        let fail = |what: String| DeviceError::Weight { name: decl.name.clone(), what };
        let loaded = source.load(decl)?;
        let quant = loaded.quant;
        let [rows, columns] = decl.shape;
        let row_bytes = quant.row_bytes(columns);
        let row_bytes = row_bytes.ok_or_else(|| fail(format!("{columns} columns are not whole blocks of {quant}")))?;
        let bytes = row_bytes.checked_mul(rows);
        if bytes != Some(loaded.bytes.count()) {
            return Err(fail(format!("has {} bytes, expected {rows} rows of {row_bytes}", loaded.bytes.count())));
        }
        if decl.format == WeightFormat::F32 {
            let mut values = vec![0.0; rows * columns];
            loaded.dequantize(0..rows, columns, &mut values).map_err(|error| fail(error.to_string()))?;
            return Ok(Self {
                quant: Quant::F32,
                columns,
                rows,
                row_bytes: 4 * columns,
                data: Data::Floats(values),
                packed: None,
            });
        }
        if loaded.factors != Factors::default() && Path::of(quant) != Path::Dequantised {
            return Err(fail(format!(
                "is {quant} with factors beside it, expected a format that is dequantised first"
            )));
        }
        if rows > 0 {
            // Once, so that kernels need not check again.
            let mut row = vec![0.0; columns];
            loaded.dequantize(0..1, columns, &mut row).map_err(|error| fail(error.to_string()))?;
        }
        Ok(Self { quant, columns, rows, row_bytes, data: Data::Stored(loaded), packed: None })
    }

    /// `rows * row_bytes` bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Stored(stored) => &stored.bytes,
            Data::Floats(values) => bytemuck::cast_slice(values),
            Data::Packed => panic!("only products read a weight whose rows were forgotten"),
        }
    }

    /// The values of a weight declared as F32.
    pub(crate) fn floats(&self) -> &[f32] {
        match &self.data {
            Data::Floats(values) => values,
            Data::Stored(_) | Data::Packed => panic!("validated: declared as F32"),
        }
    }

    /// The panels of stacked matrices of `rows` rows; `None` if the format is not multiplied in 8 bits.
    pub(crate) fn panels(&self, rows: usize) -> Option<Panels> {
        panel_bytes(self.quant, self.columns).map(|bytes| Panels { rows, bytes })
    }

    /// Panel `panel` of stacked matrices of `rows` rows of 16-bit floats, if it was packed.
    pub(crate) fn float_panel(&self, rows: usize, panel: usize) -> Option<&[u8]> {
        let bytes = float_panel_bytes(self.quant, self.columns)?;
        let (_, arena) = self.packed.as_ref().filter(|(each, _)| *each == rows)?;
        Some(&arena[panel * bytes..][..bytes])
    }

    /// Packs all matrices of `rows` rows once and for all.
    pub(crate) fn pack(&mut self, rows: usize, pool: &mut Pool) {
        let floats = float_panel_bytes(self.quant, self.columns).map(|bytes| Panels { rows, bytes });
        let Some(panels) = self.panels(rows).or(floats).filter(|panels| panels.rows > 0) else { return };
        let count = self.rows / rows * panels.each();
        let mut arena = Arena::zeroed(count * panels.bytes);
        pool.share((Place::Everywhere, count), Tiles::chunks(&mut arena, panels.bytes), |panel, mut out| {
            self.pack_panel(panels, panel, out.row_mut(0));
        });
        self.packed = Some((rows, arena));
    }

    /// Lets go of the rows as stored; only panels are left.
    pub(crate) fn forget_rows(&mut self) {
        if self.is_packed() {
            self.data = Data::Packed;
        }
    }

    /// Whether there are panels.
    pub(crate) fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// Whether the bytes of the source are used as they are.
    pub(crate) fn keeps_source(&self) -> bool {
        matches!(self.data, Data::Stored(_)) && !self.is_packed()
    }

    fn pack_panel(&self, panels: Panels, panel: usize, out: &mut [u8]) {
        let (matrix, first) = (panel / panels.each(), panel % panels.each() * ROWS);
        let rows = matrix * panels.rows + first..matrix * panels.rows + (first + ROWS).min(panels.rows);
        let rows = &self.bytes()[rows.start * self.row_bytes..rows.end * self.row_bytes];
        match Path::of(self.quant) {
            Path::Packed => pack(self.quant, self.columns, rows, out),
            Path::Float | Path::Dequantised => pack_floats(self.quant, self.columns, rows, out),
        }
    }

    /// Panel `panel` of all stacked matrices, if it was packed.
    pub(crate) fn packed_panel(&self, panels: Panels, panel: usize) -> Option<Panel<'_>> {
        let (_, arena) = self.packed.as_ref().filter(|(rows, _)| *rows == panels.rows)?;
        Some(Panel { bytes: &arena[panel * panels.bytes..][..panels.bytes], columns: self.columns })
    }

    /// Panel `panel` of all stacked matrices; packed into `scratch` if that was not done.
    pub(crate) fn panel<'a>(&'a self, panels: Panels, panel: usize, scratch: &'a mut [u8]) -> Panel<'a> {
        self.packed_panel(panels, panel).unwrap_or_else(|| {
            let scratch = &mut scratch[..panels.bytes];
            self.pack_panel(panels, panel, scratch);
            Panel { bytes: scratch, columns: self.columns }
        })
    }

    /// Rows of the matrix.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Writes row `row` to `out [columns]`.
    pub(crate) fn dequantise(&self, row: usize, out: &mut [f32]) {
        let done = match &self.data {
            Data::Stored(stored) => stored.dequantize(row..row + 1, self.columns, out),
            Data::Floats(_) | Data::Packed => {
                self.quant.dequantize(&self.bytes()[row * self.row_bytes..][..self.row_bytes], out)
            }
        };
        done.expect("tried when it was loaded");
    }
}
