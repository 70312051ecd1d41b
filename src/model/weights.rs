//! Binds GGUF tensors to declared weights: every declaration bound, every tensor used, every shape checked.

use super::{
    ModelError, ModelSpec,
    lower::{memory_weights, prediction_weights},
};
use kvas_backend::{
    Bytes, DeviceError, Factors, Program, RowBlock, Stored, WeightData, WeightDecl, WeightFormat, WeightSource,
};
use kvas_gguf::{GgufError, GgufFile, Quant, TensorBytes, TensorInfo};
use rayon::prelude::*;
use std::{
    collections::{HashSet, VecDeque},
    ops::{Deref, Range},
    sync::OnceLock,
};

/// Checks that the file has every declared row with the declared width, and nothing the program does not use.
pub fn bind(program: &Program, spec: &ModelSpec, file: &GgufFile) -> Result<(), ModelError> {
    let mut used = HashSet::new();
    let prediction = prediction_weights(spec, |name| file.tensor(name).is_some());
    let memory = memory_weights(spec);
    for decl in program.weights.iter().chain(&prediction).chain(&memory) {
        for part in &decl.parts {
            check(decl, part, file)?;
            if used.insert(part.tensor.clone()) {
                used.extend(beside(&part.tensor, file)?);
            }
        }
    }
    // Every rotating layer shares the factors; a file may have them without such a layer.
    let is_known = |name: &str| used.contains(name) || name == "rope_freqs.weight" || is_beside_text(name);
    match file.tensors().iter().find(|info| !is_known(&info.name)) {
        Some(info) => Err(GgufError::Tensor { name: info.name.clone(), what: unused(&info.name, spec, file) }.into()),
        None => Ok(()),
    }
}

/// How tensors begin that are for images, sounds and drafts where a file has all of a model, as Ollama makes them.
const BESIDE_TEXT: [&str; 4] = ["v.", "mm.", "a.", "mtp."];

fn is_beside_text(name: &str) -> bool {
    BESIDE_TEXT.iter().any(|start| name.starts_with(start))
}

/// The tensors of a file that no layer of a model of text reads.
pub fn left_out(file: &GgufFile) -> Vec<&str> {
    file.tensors().iter().map(|info| info.name.as_str()).filter(|name| is_beside_text(name)).collect()
}

/// What kvas calls a tensor of a file that has another name for it: Ollama leaves out what follows that of the biases of time
/// steps.
pub(super) fn other_name(name: &str) -> Option<String> {
    (name.starts_with("blk.") && name.ends_with(".ssm_dt")).then(|| format!("{name}.bias"))
}

/// The names of the tensors beside a weight, which are checked.
fn beside(tensor: &str, file: &GgufFile) -> Result<Vec<String>, ModelError> {
    let (Some(info), Some(stem)) = (file.tensor(tensor), tensor.strip_suffix(".weight")) else { return Ok(Vec::new()) };
    if !info.quant.has_factors() {
        return Ok(Vec::new());
    }
    file.factors(info)?;
    Ok(vec![format!("{stem}.scale"), format!("{stem}.input_scale")])
}

/// What is wrong with a tensor that no layer reads.
fn unused(name: &str, spec: &ModelSpec, file: &GgufFile) -> String {
    match file.weight_of_factor(name) {
        Some(weight) if !weight.quant.has_factors() => format!(
            "is a factor beside {}, which is {}, expected NVFP4 or the factor in the numbers, where \
             kvas quantize --allow-requantize puts it",
            weight.name, weight.quant
        ),
        Some(_) | None => {
            format!("is not used by architecture {}, expected only tensors of its layers", spec.architecture)
        }
    }
}

/// Rows and columns of a tensor seen as a matrix; vectors are one row.
fn matrix_shape(info: &TensorInfo) -> (u64, u64) {
    (info.shape[1..].iter().product(), info.shape[0])
}

fn check(decl: &WeightDecl, part: &RowBlock, file: &GgufFile) -> Result<(), ModelError> {
    let fail = |what: String| GgufError::Tensor { name: part.tensor.clone(), what };
    let expected = format!("expected {} rows of {} columns", part.first + part.rows, decl.shape[1]);
    let info = file.tensor(&part.tensor).ok_or_else(|| fail(format!("is missing, {expected}")))?;
    if matches!(info.quant, Quant::I8 | Quant::I16 | Quant::I32 | Quant::I64) {
        return Err(fail(format!("is {}, expected a format of weights such as F32 or Q8_0", info.quant)).into());
    }
    let formats = decl.parts.iter().filter_map(|part| Some(file.tensor(&part.tensor)?.quant));
    if let Some(other) = formats.into_iter().find(|other| *other != info.quant) {
        return Err(fail(format!("is {} and read together with {other}, expected one format", info.quant)).into());
    }
    let (rows, columns) = matrix_shape(info);
    // A vector may be stored as [1, n] as well as [n].
    let whole = decl.parts.len() == 1 && decl.shape[0] as u64 * decl.shape[1] as u64 == rows * columns;
    let vector = whole && decl.format == WeightFormat::F32 && decl.shape[0] == 1;
    let shaped = columns == decl.shape[1] as u64 && (part.first + part.rows) as u64 <= rows;
    // A declaration of all rows of one tensor leaves none over.
    let complete = decl.parts.len() > 1 || decl.name != part.tensor || rows == decl.shape[0] as u64;
    if vector || (shaped && complete) {
        return Ok(());
    }
    Err(fail(format!("has {rows} rows of {columns} columns, {expected}")).into())
}

/// The format in which each declared weight will be handed over.
pub fn quants(program: &Program, file: &GgufFile) -> Vec<Quant> {
    let stored = |decl: &WeightDecl| file.tensor(&decl.parts[0].tensor).map_or(Quant::F32, |info| info.quant);
    let of = |decl: &WeightDecl| if decl.format == WeightFormat::F32 { Quant::F32 } else { stored(decl) };
    program.weights.iter().map(of).collect()
}

/// Bytes that the weights of programs take in the memory of one process that computes with them where they are in the
/// file: rows that several weights read are there once. Of weights that are declared as F32, are gathered from several
/// places or are packed, which is told by weight, there is a copy instead.
pub fn resident_bytes<'a>(programs: impl IntoIterator<Item = (&'a Program, Vec<bool>)>, file: &GgufFile) -> u64 {
    let mut mapped = HashSet::new();
    let mut bytes = 0;
    for (program, packed) in programs {
        for ((decl, quant), is_packed) in program.weights.iter().zip(quants(program, file)).zip(packed) {
            let is_copied = is_packed || decl.format == WeightFormat::F32 || decl.parts.len() > 1;
            let rows = decl.parts.iter().map(|part| (&part.tensor, part.first, part.rows));
            if is_copied || mapped.insert(rows.collect::<Vec<_>>()) {
                bytes += (decl.shape[0] * quant.row_bytes(decl.shape[1]).unwrap_or(0)) as u64;
            }
        }
    }
    bytes
}

/// Bytes that are fetched from disk before anybody reads them.
const AHEAD: usize = 256 << 20;

/// Rows that lie in several places: they are brought together if somebody looks at them, not if they are only copied.
struct Gathered {
    /// In their order.
    parts: Vec<TensorBytes>,
    together: OnceLock<Vec<u8>>,
}

impl Deref for Gathered {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.together.get_or_init(|| {
            let mut bytes = vec![0; self.count()];
            let (mut rest, mut copies) = (&mut bytes[..], Vec::new());
            for part in &self.parts {
                let (to, behind) = rest.split_at_mut(part.len());
                copies.push((to, part));
                rest = behind;
            }
            // Each one waits for the disk on its own.
            copies.into_par_iter().for_each(|(to, part)| to.copy_from_slice(part));
            bytes
        })
    }
}

impl Stored for Gathered {
    fn count(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    fn copy_to(&self, range: Range<usize>, mut to: &mut [u8]) -> std::io::Result<()> {
        let mut begin = 0;
        for part in &self.parts {
            let end = begin + part.len();
            let inside = range.start.clamp(begin, end) - begin..range.end.clamp(begin, end) - begin;
            let (here, behind) = to.split_at_mut_checked(inside.len()).ok_or(std::io::ErrorKind::InvalidInput)?;
            part.copy_to(inside, here)?;
            (to, begin) = (behind, end);
        }
        if to.is_empty() { Ok(()) } else { Err(std::io::ErrorKind::InvalidInput.into()) }
    }
}

/// What was handed over and is not settled.
struct Waiting {
    name: String,
    /// Where it is in the file.
    mapped: Vec<TensorBytes>,
    bytes: usize,
}

/// The weights of a mapped file; what lies together there is not copied.
pub struct FileWeights<'a> {
    file: &'a GgufFile,
    waiting: VecDeque<Waiting>,
    /// How many of them are being fetched, and their bytes.
    fetched: (usize, usize),
    settled: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl std::fmt::Debug for FileWeights<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileWeights").field("file", &self.file.path()).finish_non_exhaustive()
    }
}

impl<'a> FileWeights<'a> {
    /// Weights of a file that [`bind`] has accepted. `progress` hears (bytes that are where they are used, bytes in all).
    pub fn new(file: &'a GgufFile, progress: &'a mut dyn FnMut(u64, u64)) -> Self {
        Self { file, waiting: VecDeque::new(), fetched: (0, 0), settled: 0, progress }
    }

    /// Has the disk work ahead of who reads what was handed over.
    fn fetch(&mut self) {
        while let Some(Waiting { mapped, bytes, .. }) = self.waiting.get(self.fetched.0)
            && self.fetched.1 < AHEAD
        {
            mapped.iter().for_each(TensorBytes::will_need);
            self.fetched = (self.fetched.0 + 1, self.fetched.1 + bytes);
        }
    }

    fn part(&self, part: &RowBlock) -> Result<(&TensorInfo, TensorBytes), DeviceError> {
        let missing = || DeviceError::Weight { name: part.tensor.clone(), what: "is missing".into() };
        let info = self.file.tensor(&part.tensor).ok_or_else(missing)?;
        Ok((info, self.file.data(info)))
    }
}

impl WeightSource for FileWeights<'_> {
    fn load(&mut self, decl: &WeightDecl) -> Result<WeightData, DeviceError> {
        let fail = |what: String| DeviceError::Weight { name: decl.name.clone(), what };
        let (info, first) = self.part(&decl.parts[0])?;
        let quant = info.quant;
        let mapped = match &decl.parts[..] {
            [_] if whole(decl, info) => vec![first],
            parts => parts.iter().map(|part| self.rows(decl, quant, part)).collect::<Result<_, _>>()?,
        };
        let bytes = match &mapped[..] {
            // Rows that lie together are used where they are.
            [mapped] => Bytes::new(mapped.clone()),
            parts => Bytes::new(Gathered { parts: parts.to_vec(), together: OnceLock::new() }),
        };
        let data = WeightData { quant, bytes, factors: self.factors(decl)? };
        self.waiting.push_back(Waiting { name: decl.name.clone(), mapped, bytes: data.bytes.count() });
        self.fetch();
        if decl.format == WeightFormat::Stored || quant == Quant::F32 {
            return Ok(data);
        }
        let mut values = vec![0.0f32; decl.shape[0] * decl.shape[1]];
        quant.dequantize(&data.bytes, &mut values).map_err(|error| fail(error.to_string()))?;
        data.factors.multiply(0, decl.shape[1], &mut values);
        Ok(WeightData::new(Quant::F32, Bytes::new(bytemuck::cast_slice(&values).to_vec())))
    }

    fn settled(&mut self, decl: &WeightDecl, kept: bool) {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.name == decl.name) else { return };
        let Some(Waiting { mapped, bytes, .. }) = self.waiting.remove(at) else { return };
        if at < self.fetched.0 {
            self.fetched = (self.fetched.0 - 1, self.fetched.1 - bytes);
        }
        self.fetch();
        match &mapped[..] {
            [mapped] if kept => mapped.read_in(),
            // What is kept of several parts is a copy.
            parts => parts.iter().for_each(TensorBytes::release),
        }
        let all = self.file.file_bytes();
        self.settled = all.min(self.settled + bytes as u64);
        (self.progress)(self.settled, all);
    }
}

fn whole(decl: &WeightDecl, info: &TensorInfo) -> bool {
    decl.shape[0] as u64 * decl.shape[1] as u64 == info.shape.iter().product::<u64>()
}

fn row_bytes(decl: &WeightDecl, quant: Quant) -> Result<usize, DeviceError> {
    quant.row_bytes(decl.shape[1]).ok_or_else(|| DeviceError::Weight {
        name: decl.name.clone(),
        what: format!("{} columns are not whole blocks of {quant}", decl.shape[1]),
    })
}

impl FileWeights<'_> {
    /// What the rows of a weight are multiplied by: each part has the factors of the matrices that its rows are in.
    fn factors(&self, decl: &WeightDecl) -> Result<Factors, DeviceError> {
        let fail = |error: GgufError| DeviceError::Weight { name: decl.name.clone(), what: error.to_string() };
        let (mut factors, mut row) = (Factors::default(), 0);
        for part in &decl.parts {
            let info = self.file.tensor(&part.tensor).filter(|info| info.quant.has_factors());
            let Some(info) = info else { return Ok(factors) };
            let mut of_matrices = self.file.factors(info).map_err(fail)?;
            if of_matrices.is_empty() && factors != Factors::default() {
                // The factor of the part before ends here.
                of_matrices.push(1.0);
            }
            let (rows, end) = (info.rows() / of_matrices.len().max(1), part.first + part.rows);
            let own = of_matrices.iter().enumerate().map(|(at, factor)| (at * rows..(at + 1) * rows, factor));
            for (rows, factor) in own.filter(|(rows, _)| rows.start < end && rows.end > part.first) {
                factors.push(row + rows.start.max(part.first) - part.first, *factor);
            }
            row += part.rows;
        }
        Ok(factors)
    }

    /// The rows of a part of a weight, which is in one format.
    fn rows(&self, decl: &WeightDecl, quant: Quant, part: &RowBlock) -> Result<TensorBytes, DeviceError> {
        let row = row_bytes(decl, quant)?;
        let (info, data) = self.part(part)?;
        if info.quant != quant {
            let what = format!("is {} in one part and {quant} in another, expected one format", info.quant);
            return Err(DeviceError::Weight { name: decl.name.clone(), what });
        }
        Ok(data.slice(part.first * row..(part.first + part.rows) * row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_copied_as_they_are_together() {
        let all: Vec<u8> = (0..60).collect();
        let part = |range: Range<usize>| TensorBytes::from(all.clone()).slice(range);
        let gathered =
            Gathered { parts: vec![part(0..7), part(7..7), part(7..31), part(31..60)], together: OnceLock::new() };
        for (begin, end) in (0..=60).flat_map(|begin| (begin..=60).map(move |end| (begin, end))) {
            let mut to = vec![0; end - begin];
            gathered.copy_to(begin..end, &mut to).unwrap();
            assert_eq!(to, all[begin..end]);
        }
        assert!(gathered.copy_to(50..61, &mut [0; 11]).is_err());
        assert!(gathered.together.get().is_none(), "nobody has looked");
        assert_eq!((&gathered[..], gathered.count()), (&all[..], 60));
    }
}
