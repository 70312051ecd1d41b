//! NVFP4 weights of a checkpoint as NVFP4 of a file: the same codes and scales in another order, and the factor of each
//! matrix in a tensor beside it.

use super::checkpoint::Stored;
use super::floats::Float;
use super::layout::Layout;
use super::plan::{Data, Job};
use super::scales::NVFP4_GROUP;
use super::{PlannedTensor, expression::Values};
use anyhow::{Result, bail};
use kvas_gguf::Quant;

/// Scales in a block of the file: one for each group of numbers.
const GROUPS: usize = 4;
/// Bytes of the codes of a group.
const CODES: usize = NVFP4_GROUP / 2;

/// The tensor of factors beside a weight, if all of its numbers are in NVFP4 and can stay as they are.
pub(super) fn factors(name: &str, data: &Data, shape: &[usize], values: &Values) -> Result<Option<Job>> {
    let Data::Stored { sources, shape: stored, transforms, .. } = data else { return Ok(None) };
    let factors: Option<Vec<f32>> = sources.iter().map(factor).collect();
    let (Some(factors), Some(stem)) = (factors, name.strip_suffix(".weight")) else { return Ok(None) };
    let layout = Layout::of(stored.clone(), transforms, values)?;
    let matrices: usize = shape.iter().rev().skip(2).product();
    if !stays(&layout, sources.len()) || ![1, matrices].contains(&factors.len()) {
        return Ok(None);
    }
    let tensor = PlannedTensor {
        name: format!("{stem}.scale"),
        quant: Quant::F32,
        fits: true,
        shape: vec![factors.len() as u64],
        bytes: 4 * factors.len() as u64,
        sources: Vec::new(),
    };
    Ok(Some(Job { tensor, data: Data::Made(factors) }))
}

/// The factor of a source that is in NVFP4 and that no adapter changes.
fn factor(source: &Stored) -> Option<f32> {
    let is_whole = source.deltas.is_empty() && source.float == Some(Float::Fp4);
    if is_whole { source.scales.as_ref()?.factor() } else { None }
}

/// Whether all numbers of a tensor are in NVFP4.
pub(super) fn is_whole(data: &Data) -> bool {
    match data {
        Data::Stored { sources, .. } => sources.iter().all(|source| factor(source).is_some()),
        Data::Made(_) => false,
    }
}

/// Whether rows consist of whole groups of their source, and the matrices of sources are one after the other.
fn stays(layout: &Layout, sources: usize) -> bool {
    let columns = layout.column_count();
    let is_plain = layout.changes.is_empty() && layout.factors.is_none() && !layout.transposed;
    let is_group = |group: &[usize]| {
        group[0].is_multiple_of(NVFP4_GROUP) && group.iter().enumerate().all(|(at, column)| *column == group[0] + at)
    };
    let in_groups = |columns: &Vec<usize>| columns.chunks(NVFP4_GROUP).all(is_group);
    // A factor is for a whole matrix: rows of several sources keep their places.
    is_plain
        && columns.is_multiple_of(GROUPS * NVFP4_GROUP)
        && layout.columns.as_ref().is_none_or(in_groups)
        && (sources == 1 || layout.rows.is_none())
}

/// One row in the order of the file: of each block 4 scales, then the codes, two numbers that are 8 apart to a byte.
pub(super) fn encode_row(layout: &Layout, codes: &[u8], scales: &[u8], out: &mut [u8]) -> Result<()> {
    for (group, block) in (0..).step_by(GROUPS).zip(out.chunks_exact_mut(Quant::Nvfp4.block_bytes())) {
        let (out_scales, out_codes) = block.split_at_mut(GROUPS);
        for (group, (scale, out)) in (group..).zip(out_scales.iter_mut().zip(out_codes.chunks_exact_mut(CODES))) {
            let source = layout.columns.as_ref().map_or(group, |columns| columns[group * NVFP4_GROUP] / NVFP4_GROUP);
            *scale = scales[source];
            if *scale >= 0x7F {
                bail!("scale {source} is {scale:#x}, expected that of a positive number");
            }
            let codes = &codes[source * CODES..][..CODES];
            let code = |at: usize| codes[at / 2] >> (at % 2 * 4) & 15;
            out.iter_mut().enumerate().for_each(|(at, out)| *out = code(at) | code(at + CODES) << 4);
        }
    }
    Ok(())
}
