//! Numbers that are stored in units: FP8 and integers with a tensor of scales beside them, MXFP4 as blocks and their scales, and
//! NVFP4 with scales and a factor for all of them.

use super::checkpoint::{Checkpoint, Stored};
use super::floats::Float;
use anyhow::{Context, Result, bail};
use safetensors::tensor::Dtype;

/// Numbers of a block of MXFP4 and MXFP8.
const MX_BLOCK: usize = 32;

/// Numbers that share a scale in NVFP4.
pub(super) const NVFP4_GROUP: usize = 16;

/// The largest integer of bitsandbytes stands for the scale of its row.
const INT8_LARGEST: f32 = 127.0;

/// What tensors beside NVFP4 weights are called: that of the codes, of the scales, of the factor, and whether the factor
/// divides. First as ModelOpt writes them, then as compressed-tensors does.
const NVFP4_NAMES: [([&str; 3], bool); 2] = [
    (["weight", "weight_scale", "weight_scale_2"], false),
    (["weight_packed", "weight_scale", "weight_global_scale"], true),
];

/// The scales of a tensor: one for each block of its matrices.
#[derive(Debug, Clone)]
pub(super) struct Scales {
    stored: Stored,
    float: Float,
    /// Rows of each matrix of the tensor.
    height: usize,
    /// Rows and columns of a block.
    block: [usize; 2],
    /// Blocks along the rows and along the columns of a matrix.
    grid: [usize; 2],
    /// What all numbers are multiplied by as well, which NVFP4 has, and integers of bitsandbytes.
    factor: Option<f32>,
}

impl Scales {
    /// The tensor `stored` of scales for a tensor of another shape, in blocks of `block` rows and columns, or of whole
    /// rows, columns or everything; `None` if it fits none.
    fn of(shape: &[usize], stored: Stored, float: Float, block: [usize; 2]) -> Option<Scales> {
        if stored.shape.iter().product::<usize>() == 1 {
            // One block, however the numbers are reshaped.
            let all = shape.iter().product::<usize>().max(1);
            return Some(Scales { stored, float, height: all, block: [all, all], grid: [1, 1], factor: None });
        }
        let (&columns, outer) = shape.split_last()?;
        let (&height, outer) = outer.split_last()?;
        let (blocks_down, blocks_across) = match stored.shape.strip_prefix(outer)? {
            [down] => (*down, 1),
            [down, across] => (*down, *across),
            _ => return None,
        };
        let size = |length: usize, count: usize, block: usize| match count {
            _ if count == length.div_ceil(block) => Some(block),
            1 => Some(length),
            _ if count == length => Some(1),
            _ => None,
        };
        let block = [size(height, blocks_down, block[0])?, size(columns, blocks_across, block[1])?];
        Some(Scales { stored, float, height, block, grid: [blocks_down, blocks_across], factor: None })
    }

    /// The factor of all numbers.
    pub(super) fn factor(&self) -> Option<f32> {
        self.factor
    }

    /// Reads them.
    pub(super) fn load(&self, checkpoint: &Checkpoint) -> Result<LoadedScales<'_>> {
        let count = self.stored.shape.iter().product();
        let mut raw = vec![0; self.float.bytes_of(count)];
        checkpoint.read(&self.stored, 0, &mut raw)?;
        Ok(LoadedScales { scales: self, raw })
    }
}

/// Scales in memory, as they are stored: there are many of them.
pub(super) struct LoadedScales<'a> {
    scales: &'a Scales,
    raw: Vec<u8>,
}

impl LoadedScales<'_> {
    /// The scales of one row of the tensor, as they are stored.
    pub(super) fn line(&self, row: usize) -> &[u8] {
        let Scales { float, height, block, grid, .. } = self.scales;
        let line = row / height * grid[0] + row % height / block[0];
        let bytes = float.bytes_of(grid[1]);
        &self.raw[line * bytes..][..bytes]
    }

    /// Multiplies the numbers of one row of the tensor.
    pub(super) fn apply(&self, row: usize, numbers: &mut [f32]) {
        let Scales { float, block, grid, factor, .. } = self.scales;
        let mut scales = vec![0.0; grid[1]];
        float.decode(self.line(row), &mut scales);
        for (numbers, scale) in numbers.chunks_mut(block[1]).zip(scales) {
            numbers.iter_mut().for_each(|number| *number *= scale);
        }
        if let Some(factor) = factor {
            numbers.iter_mut().for_each(|number| *number *= factor);
        }
    }
}

/// Joins every tensor of the checkpoint that has scales with them: `name_scale_inv` or `name_scale` of FP8 numbers,
/// `name_scale` of integers of eight bits or `SCB` of those of bitsandbytes, `name_packed` with `name_scale`, `name_blocks`
/// with `name_scales`, and NVFP4 weights. `block` is the size of FP8's blocks where they are neither rows nor everything.
pub(super) fn pair(checkpoint: &mut Checkpoint, block: [usize; 2]) -> Result<()> {
    let names: Vec<String> = checkpoint.names().map(String::from).collect();
    for name in names {
        if pair_nvfp4(checkpoint, &name)? || pair_packed(checkpoint, &name)? || pair_int8(checkpoint, &name)? {
            continue;
        }
        let Some(mut stored) = checkpoint.get(&name).cloned() else { continue };
        if stored.dtype == Dtype::I8 && checkpoint.get(&format!("{name}_scale")).is_some() {
            stored.float = Some(Float::Int8);
            join(checkpoint, [&name, &name, &format!("{name}_scale")], stored, block)?;
        } else if stored.float == Some(Float::Fp8) {
            let scales = ["_scale_inv", "_scale"].map(|ending| format!("{name}{ending}"));
            if let Some(found) = scales.iter().find(|scales| checkpoint.get(scales).is_some()) {
                // Exponents in bytes are those of MXFP8.
                let across = stored.shape.last().map(|columns| columns.div_ceil(MX_BLOCK));
                let is_mx = checkpoint
                    .get(found)
                    .is_some_and(|scales| scales.dtype == Dtype::U8 && scales.shape.last().copied() == across);
                let block = if is_mx { [1, MX_BLOCK] } else { block };
                join(checkpoint, [&name, &name, found], stored, block)?;
            }
        } else if let Some(stem) = name.strip_suffix("weight_packed")
            && stored.dtype == Dtype::U8
            && checkpoint.get(&format!("{stem}weight_scale")).is_some_and(|scales| scales.dtype == Dtype::U8)
            && let Some(columns) = stored.shape.last_mut()
        {
            *columns *= 2;
            stored.float = Some(Float::Fp4);
            let names = ["weight", "weight_scale"].map(|ending| format!("{stem}{ending}"));
            join(checkpoint, [&name, &names[0], &names[1]], stored, [1, MX_BLOCK])?;
        } else if let Some(whole) = name.strip_suffix("_blocks")
            && stored.dtype == Dtype::U8
            && checkpoint.get(&format!("{whole}_scales")).is_some()
            && let Some((16, outer)) = stored.shape.split_last()
            && let Some((&groups, outer)) = outer.split_last()
        {
            stored.shape = [outer, &[groups * MX_BLOCK]].concat();
            stored.float = Some(Float::Fp4);
            join(checkpoint, [&name, whole, &format!("{whole}_scales")], stored, [1, MX_BLOCK])?;
        }
    }
    Ok(())
}

/// Joins an NVFP4 weight with its scales and its factor. False if the tensor of this name is not the codes of one.
fn pair_nvfp4(checkpoint: &mut Checkpoint, name: &str) -> Result<bool> {
    let is_whole = |(codes, scales, factor): (&str, &str, &str)| {
        let is = |name: &str, dtype: Dtype| checkpoint.get(name).is_some_and(|stored| stored.dtype == dtype);
        is(codes, Dtype::U8) && is(scales, Dtype::F8_E4M3) && is(factor, Dtype::F32)
    };
    let found = NVFP4_NAMES.iter().find_map(|([codes, scales, factor], divides)| {
        let stem = name.strip_suffix(codes).filter(|stem| stem.ends_with('.'))?;
        let names = [scales, factor].map(|ending| format!("{stem}{ending}"));
        is_whole((name, &names[0], &names[1])).then(|| (format!("{stem}weight"), names, *divides))
    });
    let Some((whole, [scales, factor], divides)) = found else { return Ok(false) };
    let Some(mut stored) = checkpoint.get(name).cloned() else { return Ok(false) };
    let factor = read_factor(checkpoint, &factor, divides)?;
    let columns = stored.shape.last_mut().with_context(|| format!("tensor {name} has no columns"))?;
    *columns *= 2;
    stored.float = Some(Float::Fp4);
    join(checkpoint, [name, &whole, &scales], stored, [1, NVFP4_GROUP])?;
    multiply(checkpoint, &whole, factor);
    Ok(true)
}

/// Joins integers that are packed into others of 32 bits with their scales: `weight_packed`, `weight_scale`, and the shape of the
/// weight in `weight_shape`. False if the tensor of this name is none of those.
fn pair_packed(checkpoint: &mut Checkpoint, name: &str) -> Result<bool> {
    let Some(stem) = name.strip_suffix("weight_packed").filter(|stem| stem.ends_with('.')) else { return Ok(false) };
    let beside = ["weight_scale", "weight_shape"].map(|ending| format!("{stem}{ending}"));
    let [Some(scales), Some(shape)] = beside.each_ref().map(|name| checkpoint.get(name)) else { return Ok(false) };
    let Some(mut stored) = checkpoint.get(name).filter(|stored| stored.dtype == Dtype::I32).cloned() else {
        return Ok(false);
    };
    let mut raw = [0; 16];
    if shape.dtype != Dtype::I64 || shape.shape != [2] {
        bail!("tensor {} is {:?} of the shape {:?}, expected two I64", beside[1], shape.dtype, shape.shape);
    }
    checkpoint.read(shape, 0, &mut raw)?;
    let sizes: Vec<usize> = raw.as_chunks().0.iter().map(|raw| i64::from_le_bytes(*raw) as usize).collect();
    let [rows, columns] = sizes[..] else { return Ok(false) };
    stored.float = match stored.shape[..] {
        [height, width] if height == rows && width.checked_mul(8) == Some(columns) => Some(Float::Shifted4),
        [height, width] if height == rows && width.checked_mul(4) == Some(columns) => Some(Float::Shifted8),
        _ => bail!(
            "tensor {name} has the shape {:?}, expected {rows} rows of {columns} numbers in 4 or 8 bits",
            stored.shape
        ),
    };
    let groups = scales.shape.last().copied().unwrap_or(1).max(1);
    stored.shape = sizes;
    checkpoint.remove(&beside[1]);
    join(checkpoint, [name, &format!("{stem}weight"), &beside[0]], stored, [1, columns.div_ceil(groups).max(1)])?;
    Ok(true)
}

/// Joins integers of eight bits as bitsandbytes stores them with the scales of their rows. False if the tensor of this name is
/// none of those.
fn pair_int8(checkpoint: &mut Checkpoint, name: &str) -> Result<bool> {
    let Some(stem) = name.strip_suffix("weight").filter(|stem| stem.ends_with('.')) else { return Ok(false) };
    let scales = format!("{stem}SCB");
    let Some(mut stored) = checkpoint.get(name).filter(|stored| stored.dtype == Dtype::I8).cloned() else {
        return Ok(false);
    };
    if checkpoint.get(&scales).is_none() {
        return Ok(false);
    }
    let order = format!("{name}_format");
    if let Some(found) = checkpoint.remove(&order) {
        let mut raw = [0];
        if found.dtype != Dtype::U8 || found.shape.iter().product::<usize>() != 1 {
            bail!("tensor {order} is {:?} of the shape {:?}, expected one U8", found.dtype, found.shape);
        }
        checkpoint.read(&found, 0, &mut raw)?;
        if raw != [0] {
            bail!("tensor {order} is {}, expected 0: rows one after the other", raw[0]);
        }
    }
    stored.float = Some(Float::Int8);
    join(checkpoint, [name, name, &scales], stored, [1, 1])?;
    multiply(checkpoint, name, 1.0 / INT8_LARGEST);
    Ok(true)
}

/// Has the numbers of a tensor multiplied by one more.
fn multiply(checkpoint: &mut Checkpoint, name: &str, factor: f32) {
    if let Some(mut stored) = checkpoint.remove(name) {
        stored.scales.iter_mut().for_each(|scales| scales.factor = Some(factor));
        checkpoint.insert(name, stored);
    }
}

/// Takes the one number of a tensor.
fn read_factor(checkpoint: &mut Checkpoint, name: &str, divides: bool) -> Result<f32> {
    let Some(stored) = checkpoint.remove(name) else { bail!("tensor {name} is missing from the checkpoint") };
    if stored.shape.iter().product::<usize>() != 1 {
        bail!("tensor {name} has the shape {:?}, expected one number", stored.shape);
    }
    let mut raw = [0; 4];
    checkpoint.read(&stored, 0, &mut raw)?;
    let number = f32::from_le_bytes(raw);
    let factor = if divides { 1.0 / number } else { number };
    if !factor.is_finite() || number == 0.0 {
        bail!("tensor {name} is {number}, expected a finite number other than 0");
    }
    Ok(factor)
}

/// Puts the tensor in the place of itself under its old name and of its scales.
fn join(
    checkpoint: &mut Checkpoint,
    [old, name, scales]: [&str; 3],
    mut stored: Stored,
    block: [usize; 2],
) -> Result<()> {
    let Some(found) = checkpoint.remove(scales) else { return Ok(()) };
    let shape = found.shape.clone();
    let float = if found.dtype == Dtype::U8 { Some(Float::Exponent) } else { found.float };
    let Some(float) = float else {
        bail!("tensor {scales} is {:?}, expected the type of scales: F32, F16, BF16 or F8_E8M0", found.dtype);
    };
    let Some(scales) = Scales::of(&stored.shape, found, float, block) else {
        let [rows, columns] = block;
        bail!(
            "tensor {scales} has the shape {shape:?}, expected a scale for each block of {rows} x {columns} of {:?}",
            stored.shape
        );
    };
    checkpoint.remove(old);
    stored.scales = Some(Box::new(scales));
    checkpoint.insert(name, stored);
    Ok(())
}
