//! Weights on the device: which format each one has there, and how it gets there.
//!
//! F32 lies row after row. Formats that kernels read are packed (`kernels/quant/formats.cuh`): bytes in another order, scales
//! divided by a power of two, nothing lost. All other formats are turned into F16, and those that are no floats into F32. What a memory of segments goes
//! through lies column after column.

use crate::{
    device::{Device, DeviceMemory, Ptr},
    upload::Uploader,
};
use kvas_backend::{Bytes, DeviceError, Factors, Op, Program, WeightDecl, WeightFormat, WeightSource};
use kvas_gguf::Quant;
use std::{collections::VecDeque, ops::Range, sync::Arc};

/// Columns of a unit: products go through rows in whole ones.
pub(crate) const UNIT: usize = 64;
/// Rows of a tile of a packed matrix.
pub(crate) const TILE: usize = 16;
/// The largest number of F16, which formats without kernels are turned into.
const F16_MAX: f32 = 65504.0;
/// Bytes that are uploaded at once to be packed.
const STAGING: usize = 64 << 20;

/// A weight matrix.
pub(crate) struct Matrix {
    /// Format of the values on the device: kernels are chosen by it.
    pub(crate) quant: Quant,
    /// Rows, of all matrices that are stacked in it, and values of a row.
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// What its values have been divided by, a power of two.
    pub(crate) factor: f32,
    memory: DeviceMemory,
    /// The values of what is declared as F32: small, and wanted on the host as well, by what depends on them there.
    floats: Vec<f32>,
}

impl Matrix {
    /// Where its first row is.
    pub(crate) fn at(&self) -> Ptr {
        self.memory.at()
    }

    /// Units of a row.
    pub(crate) fn units(&self) -> usize {
        self.columns.div_ceil(UNIT)
    }

    /// The values of a weight declared as F32, column after column.
    fn columns_in_order(&self) -> Vec<f32> {
        let column = |column: usize| self.floats[column..].iter().step_by(self.columns);
        (0..self.columns).flat_map(column).copied().collect()
    }

    /// The values of a weight declared as F32.
    pub(crate) fn floats(&self) -> &[f32] {
        &self.floats
    }
}

/// How the names of kernels say a format: `q4_k`.
pub(crate) fn suffix(quant: Quant) -> String {
    quant.name().to_lowercase()
}

/// Bytes of a packed unit of a tile, and of what four units share: `UNIT` and `SUPER` of `kernels/quant/formats.cuh`.
pub(crate) fn packed(quant: Quant) -> Option<[usize; 2]> {
    const KERNELS: &[(Quant, [usize; 2])] = &[
        (Quant::F16, [2048, 0]),
        (Quant::Bf16, [2048, 0]),
        (Quant::Q4_0, [512 + 64, 0]),
        (Quant::Q4_1, [512 + 128, 0]),
        (Quant::Q5_0, [640 + 64, 0]),
        (Quant::Q5_1, [640 + 128, 0]),
        (Quant::Q8_0, [1024 + 64, 0]),
        (Quant::Q2K, [256 + 64, 64]),
        (Quant::Q3K, [384 + 64, 32]),
        (Quant::Q4K, [512 + 64, 64]),
        (Quant::Q5K, [640 + 64, 64]),
        (Quant::Q6K, [768 + 64, 32]),
        (Quant::Iq4Nl, [512 + 64, 0]),
        (Quant::Iq4Xs, [512 + 32, 32]),
        (Quant::Mxfp4, [512 + 32, 0]),
    ];
    KERNELS.iter().find(|(of, _)| *of == quant).map(|(_, bytes)| *bytes)
}

/// Whether the packed values of a format are divided by a factor of the matrix: `HAS_HALVES` of `kernels/quant/formats.cuh`.
fn is_divided(quant: Quant) -> bool {
    packed(quant).is_some() && !matches!(quant, Quant::F16 | Quant::Bf16 | Quant::Mxfp4)
}

/// The factor of a matrix by the largest of what its codes are multiplied with, which comes between 2^14 and 2^15.
fn factor(largest: f32) -> f32 {
    if largest == 0.0 { 1.0 } else { f32::from_bits((largest.to_bits() >> 23 << 23) - (14 << 23)) }
}

/// Bytes of a packed unit of a tile, with what it shares with three others.
pub(crate) fn unit_bytes(quant: Quant) -> usize {
    packed(quant).map_or(0, |[unit, shared]| unit + shared)
}

/// The format on the device of a weight stored in `quant`.
pub(crate) fn on_device(quant: Quant, format: WeightFormat) -> Quant {
    let is_number = matches!(quant, Quant::I8 | Quant::I16 | Quant::I32 | Quant::I64 | Quant::F64 | Quant::F32);
    match format {
        WeightFormat::F32 => Quant::F32,
        WeightFormat::Stored if is_number => Quant::F32,
        WeightFormat::Stored if packed(quant).is_some() => quant,
        WeightFormat::Stored => Quant::F16,
    }
}

/// Bytes on the device of a matrix `shape`, whose rows belong to `count` matrices of as many.
fn device_bytes(quant: Quant, shape: [usize; 2], count: usize) -> usize {
    let [rows, columns] = shape;
    let units = columns.div_ceil(UNIT);
    match packed(quant) {
        Some(bytes) => count * (rows / count).div_ceil(TILE) * tile_bytes(bytes, units),
        None => 4 * rows * columns,
    }
}

fn tile_bytes([unit, four]: [usize; 2], units: usize) -> usize {
    units * unit + units / 4 * four
}

/// Bytes that a weight takes on the device if the file has it in this format.
pub fn weight_bytes(decl: &WeightDecl, quant: Quant) -> u64 {
    let bytes = device_bytes(on_device(quant, decl.format), decl.shape, 1) as u64;
    // The driver gives memory in pieces of 512 bytes.
    bytes.next_multiple_of(512)
}

/// How many matrices are stacked in each weight.
fn counts(program: &Program) -> Vec<usize> {
    let mut counts = vec![1; program.weights.len()];
    for product in program.ops.iter().filter_map(|op| op.product(program)) {
        let (_, count) = product.matrices(program);
        product.weights().for_each(|weight| counts[weight.0 as usize] = count);
    }
    counts
}

/// Brings all weights of a program onto a device.
pub(crate) struct Loader<'a> {
    device: &'a Arc<Device>,
    uploader: &'a mut Uploader,
    source: &'a mut dyn WeightSource,
    /// For what has to be packed.
    staging: Option<DeviceMemory>,
    /// What the factor of each weight depends on, in f32.
    largest: DeviceMemory,
    /// Weights that are asked for, and the pieces up to the last one of each.
    asked: VecDeque<(&'a WeightDecl, usize)>,
}

impl<'a> Loader<'a> {
    /// Loads the weights of `program`.
    pub(crate) fn load(
        (device, uploader): (&'a Arc<Device>, &'a mut Uploader),
        source: &'a mut dyn WeightSource,
        program: &'a Program,
    ) -> Result<Vec<Matrix>, DeviceError> {
        let largest = device.take("the largest scales of weights", 4 * program.weights.len())?;
        device.fill(largest.at(), 0, largest.bytes())?;
        let mut loader = Self { device, uploader, source, staging: None, largest, asked: VecDeque::new() };
        let counts = counts(program);
        let mut matrices = Vec::new();
        for (number, decl) in program.weights.iter().enumerate() {
            matrices.push(loader.matrix((number, decl), counts[number], None)?);
        }
        // A kernel multiplies with a gate and with what it gates at once: both are of one format.
        for product in program.ops.iter().filter_map(|op| op.product(program)) {
            let [Some(gate), Some(up)] = product.weights else { continue };
            let quants = [gate, up].map(|weight| matrices[weight.0 as usize].quant);
            if quants[0] != quants[1] {
                let has_floats = quants.iter().any(|quant| matches!(quant, Quant::F32 | Quant::Bf16));
                let common = if has_floats { Quant::F32 } else { Quant::F16 };
                // Nothing may be on its way to what goes.
                loader.uploader.finish()?;
                for weight in [gate, up].map(|weight| weight.0 as usize) {
                    let numbered = (weight, &program.weights[weight]);
                    matrices[weight] = loader.matrix(numbered, counts[weight], Some(common))?;
                }
            }
        }
        let layers = program.ops.iter().filter_map(|op| if let Op::ReadMemory(op) = op { Some(op) } else { None });
        for weight in layers.flat_map(|op| [op.fc1[0], op.fc2[0]]) {
            let matrix = &matrices[weight.0 as usize];
            loader.uploader.finish()?;
            device.upload(matrix.at(), &matrix.columns_in_order())?;
        }
        loader.uploader.finish()?;
        loader.settle();
        let mut largest = vec![0.0; matrices.len()];
        device.download(loader.largest.at(), &mut largest)?;
        for (matrix, largest) in matrices.iter_mut().zip(largest).filter(|(matrix, _)| is_divided(matrix.quant)) {
            matrix.factor = factor(largest);
        }
        Ok(matrices)
    }

    /// Says which weights have been read.
    fn settle(&mut self) {
        while let Some((decl, _)) = self.asked.pop_front_if(|(_, pieces)| *pieces <= self.uploader.read()) {
            self.source.settled(decl, false);
        }
    }

    /// Gets weight number `weight`, checks that it can be computed with, and has it uploaded.
    fn matrix(
        &mut self,
        (weight, decl): (usize, &'a WeightDecl),
        count: usize,
        wanted: Option<Quant>,
    ) -> Result<Matrix, DeviceError> {
        let fail = |what: String| DeviceError::Weight { name: decl.name.clone(), what };
        let loaded = self.source.load(decl)?;
        let [rows, columns] = decl.shape;
        let row_bytes = loaded.quant.row_bytes(columns);
        let row_bytes =
            row_bytes.ok_or_else(|| fail(format!("{columns} columns are not whole blocks of {}", loaded.quant)))?;
        if row_bytes.checked_mul(rows) != Some(loaded.bytes.count()) {
            return Err(fail(format!("has {} bytes, expected {rows} rows of {row_bytes}", loaded.bytes.count())));
        }
        let quant = wanted.unwrap_or(on_device(loaded.quant, decl.format));
        let memory = self.device.take(&format!("weight {}", decl.name), device_bytes(quant, decl.shape, count))?;
        let mut matrix = Matrix { quant, rows, columns, factor: 1.0, memory, floats: Vec::new() };
        let largest = self.largest.at().at(4 * weight);
        // Matrices of whole tiles follow each other without gaps.
        let of_one = rows / count;
        let matrices = if packed(quant).is_none() || of_one.is_multiple_of(TILE) { [rows, 1] } else { [of_one, count] };
        let some = (STAGING / row_bytes.max(quant.row_bytes(columns).unwrap_or(0)).max(1) / TILE * TILE).max(TILE);
        for (number, first) in (0..matrices[1]).flat_map(|at| (0..matrices[0]).step_by(some).map(move |row| (at, row)))
        {
            let part = number * matrices[0] + first..number * matrices[0] + matrices[0].min(first + some);
            let stored = part.start * row_bytes..part.end * row_bytes;
            let is_last = part.end == rows;
            let place = (number, first, matrices[0]);
            if loaded.quant == quant && decl.format == WeightFormat::Stored && loaded.factors == Factors::default() {
                self.send((&matrix, largest, is_last), (&loaded.bytes, stored), place)?;
                continue;
            }
            let mut values = vec![0.0; part.len() * columns];
            let mut bytes = vec![0; part.len() * quant.block_bytes() * columns];
            let converted =
                loaded.dequantize(part, columns, &mut values).and_then(|()| quant.quantize(&values, &mut bytes));
            converted.map_err(|error| fail(error.to_string()))?;
            if quant == Quant::F16
                && let Some(value) = values.iter().find(|value| value.abs() > F16_MAX)
            {
                return Err(fail(format!("has {value}, expected numbers up to {F16_MAX}, which F16 holds on a GPU")));
            }
            let whole = 0..bytes.len();
            self.send((&matrix, largest, is_last), (&Bytes::new(bytes), whole), place)?;
            if decl.format == WeightFormat::F32 {
                matrix.floats.extend(values);
            }
        }
        self.asked.push_back((decl, self.uploader.asked()));
        self.settle();
        Ok(matrix)
    }

    /// Has rows uploaded in the format of the device, and packed: those from row `first` of matrix number `number` on, which has
    /// `rows` rows. When the last ones of a weight are there, all of it can be divided.
    fn send(
        &mut self,
        (to, largest, is_last): (&Matrix, Ptr, bool),
        (bytes, part): (&Bytes, Range<usize>),
        (number, first, rows): (usize, usize, usize),
    ) -> Result<(), DeviceError> {
        let (units, row_bytes) = (to.units(), to.quant.row_bytes(to.columns).unwrap_or(0));
        let Some(packed) = packed(to.quant) else {
            return self.uploader.send(to.at().at(first * row_bytes), bytes, part, None);
        };
        if self.staging.as_ref().is_none_or(|staging| staging.bytes() < part.len()) {
            // What is on its way to the one there was has to arrive there.
            self.uploader.finish()?;
            self.staging = Some(self.device.take("weights on their way", STAGING.max(part.len()))?);
        }
        let Some(from) = self.staging.as_ref().map(DeviceMemory::at) else { return Ok(()) };
        let tiles = number * rows.div_ceil(TILE) + first / TILE;
        let (at, columns) = (to.at().at(tiles * tile_bytes(packed, units)), to.columns as u32);
        let rows = part.len().checked_div(row_bytes).unwrap_or(0);
        let [pack, divide] = ["pack", "divide"].map(|what| format!("{what}_{}", suffix(to.quant)));
        let tiles = to.memory.bytes() / tile_bytes(packed, units).max(1);
        let divided = (is_last && is_divided(to.quant)).then_some((to.at(), tiles));
        let pack = move |device: &Device| {
            let launch = device.kernel("pack", &pack)?.grid(rows.div_ceil(TILE), units, 1).block(32).arg(from).arg(at);
            let launch = launch.arg(rows as u32).arg(row_bytes as u32).arg(columns).arg(units as u32);
            launch.arg(largest).launch()?;
            let Some((at, tiles)) = divided else { return Ok(()) };
            let launch = device.kernel("pack", &divide)?.grid(tiles, units, 1).block(32);
            launch.arg(at).arg(units as u32).arg(largest).launch()
        };
        self.uploader.send(from, bytes, part, Some(Box::new(pack)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_formats_take_hardly_more_than_their_blocks() {
        for quant in Quant::ALL.iter().filter(|quant| packed(**quant).is_some()) {
            let stored = 4096 * quant.row_bytes(4096).unwrap();
            let device = device_bytes(*quant, [4096, 4096], 1);
            assert!(device >= stored && device * 100 <= stored * 108, "{quant}: {device} of {stored}");
        }
        // Padding: 3 matrices of 7 rows are 3 tiles, 96 columns are 2 units.
        assert_eq!(device_bytes(Quant::Q8_0, [21, 96], 3), 3 * 2 * 1088);
        assert_eq!(device_bytes(Quant::F16, [21, 96], 3), 3 * 2 * 2048);
    }

    #[test]
    fn other_formats_become_f16_or_f32() {
        let of = |quant| on_device(quant, WeightFormat::Stored);
        assert_eq!([of(Quant::Q4K), of(Quant::Iq3S), of(Quant::I32)], [Quant::Q4K, Quant::F16, Quant::F32]);
        assert_eq!(on_device(Quant::Q4K, WeightFormat::F32), Quant::F32);
    }

    #[test]
    fn factors_are_powers_of_two_that_leave_room_above_and_below() {
        for largest in [f32::from_bits(0x3300_0000), 0.7, 16383.9, 16384.0, 32767.0, 32768.0, 1e14] {
            let factor = factor(largest);
            assert_eq!(factor.to_bits() & 0x007f_ffff, 0, "{largest}: {factor}");
            assert!((16384.0..32768.0).contains(&(largest / factor)), "{largest}: {factor}");
        }
        assert_eq!(factor(0.0), 1.0);
    }
}
