//! Products with stored matrices: which kernel, which grid, and where what it reads is prepared.

use crate::{
    device::{Device, Ptr},
    launch::Argument,
    machine::Machine,
    ops::{
        activation,
        beside::Together,
        clustered, experts, flag,
        kernel::{Kernel, SEGMENTS, SPLIT, is_split},
        narrow, wide,
    },
    weights::{Matrix, UNIT, suffix, unit_bytes},
};
use kvas_backend::{
    Act, DeviceError, Limits, Op, Program, Rows, Stacking, Weight,
    op::{self, Activation, Output},
};
use kvas_gguf::Quant;

/// Files of kernels for weights of these formats.
pub(crate) fn units(quants: &[Quant]) -> Vec<&'static str> {
    ["stage", "stage_wide", "pack"].into_iter().chain(quants.iter().map(|quant| unit(*quant))).collect()
}

/// The file of a format's kernels.
pub(super) fn unit(quant: Quant) -> &'static str {
    const UNITS: &[(Quant, &str)] = &[
        (Quant::F32, "product_f32"),
        (Quant::F16, "product_f16"),
        (Quant::Bf16, "product_bf16"),
        (Quant::Q4_0, "product_q4_0"),
        (Quant::Q4_1, "product_q4_1"),
        (Quant::Q5_0, "product_q5_0"),
        (Quant::Q5_1, "product_q5_1"),
        (Quant::Q8_0, "product_q8_0"),
        (Quant::Q2K, "product_q2_k"),
        (Quant::Q3K, "product_q3_k"),
        (Quant::Q4K, "product_q4_k"),
        (Quant::Q5K, "product_q5_k"),
        (Quant::Q6K, "product_q6_k"),
        (Quant::Iq4Nl, "product_iq4_nl"),
        (Quant::Iq4Xs, "product_iq4_xs"),
        (Quant::Mxfp4, "product_mxfp4"),
    ];
    UNITS.iter().find(|(of, _)| *of == quant).expect("weights are loaded in formats that have kernels").1
}

/// What a kernel is given: `Job` of `kernels/quant/job.cuh`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct Job {
    weight: u64,
    up: u64,
    pub(super) x: u64,
    factor: u64,
    pieces: u64,
    chosen: u64,
    piece_count: u64,
    order: u64,
    out: u64,
    bias: u64,
    row_gate: u64,
    parts: u64,
    rows: u32,
    units: u32,
    entries: u32,
    matrices: u32,
    per_input: u32,
    x_stride: u32,
    out_stride: u32,
    column: u32,
    activation: u32,
    accumulate: u32,
    scale: f32,
    columns: u32,
    pub(super) neighbours: u32,
    pub(super) norm_threads: u32,
    pub(super) norm: u64,
    pub(super) normed: u64,
    pub(super) norm_eps: f32,
    weight_factor: f32,
    up_factor: f32,
    padding: u32,
    left: u64,
}

impl Job {
    /// Rows of a matrix.
    pub(crate) fn rows(&self) -> usize {
        self.rows as usize
    }

    /// Whether entries of experts are cut into pieces.
    pub(super) fn has_pieces(&self) -> bool {
        self.pieces != 0
    }

    /// Entries that a block of one of [`Kernel::Ring`] has: of a matrix that a row chose, that row.
    pub(super) fn entries_of_block(&self) -> usize {
        if self.chosen == 0 { self.entries as usize } else { 1 }
    }
}

impl Argument for Job {
    fn push(self, words: &mut Vec<u64>) {
        words.extend(bytemuck::cast::<_, [u64; size_of::<Job>() / 8]>(self));
    }
}

/// A product before its kernel is chosen.
pub(crate) struct Multiply {
    pub(crate) x: Act,
    pub(crate) weight: Weight,
    /// Of gated products: what `weight` gates.
    pub(crate) up: Option<Weight>,
    pub(crate) stacking: Stacking,
    pub(crate) out: Ptr,
    /// Values from one entry to the next.
    pub(crate) out_stride: usize,
    pub(crate) column: usize,
    pub(crate) bias: Option<Weight>,
    pub(crate) row_gate: Option<Act>,
    pub(crate) activation: Option<Activation>,
    pub(crate) scale: f32,
    pub(crate) output: Output,
}

impl Multiply {
    /// `out = x weight^T`.
    pub(crate) fn new(x: Act, weight: Weight, stacking: Stacking, out: Ptr, out_stride: usize) -> Self {
        let (up, column, bias, row_gate, activation, scale) = (None, 0, None, None, None, 1.0);
        let output = Output::Write;
        Self { x, weight, up, stacking, out, out_stride, column, bias, row_gate, activation, scale, output }
    }

    /// The experts that rows chose, if it is a product with some.
    fn experts(&self) -> Option<Act> {
        match self.stacking {
            Stacking::One | Stacking::Heads(_) => None,
            Stacking::Experts(experts, _) | Stacking::ExpertParts(experts, _) => Some(experts),
        }
    }
}

/// How products want rows of activations in 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ActivationForm {
    /// Not at all: as they are.
    Floats,
    /// Row after row.
    Plain,
    /// As [`Kernel::Wide`] does.
    Wide,
    /// The same in the order of pieces: those, how many there are, the entries in their order; entries of an input; pieces
    /// there may be, and entries of one.
    Pieces { list: [u64; 3], per_input: usize, most: [usize; 2] },
}

/// Rows of an activation in 16 bits, in the scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Staged {
    act: Act,
    is_bf16: bool,
    wanted: ActivationForm,
    rows: usize,
    stride: usize,
    columns: usize,
    /// Where they and their factors are.
    at: [Ptr; 2],
}

/// Entries of experts in their order, in pieces, in the scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grouped {
    experts: Act,
    /// Entries, experts, and the most entries of a piece.
    sizes: [usize; 3],
    /// Where pieces and the order are.
    at: [usize; 2],
}

/// Where the parts of the scratch of a product are. Sizes are those of the largest step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) pieces: usize,
    pub(crate) order: usize,
    factors: usize,
    x: usize,
    /// Products of entries that are summed afterwards, or parts of products.
    pub(crate) sums: usize,
    bytes: usize,
}

impl Parts {
    /// For so many rows that meet matrices `[rows, columns]`, or two of them at once. `in_order`: entries of experts may
    /// have an input each. `left`: sums that blocks may leave to others.
    fn new(
        most_rows: usize,
        (per_row, stacking, in_order): (usize, Stacking, bool),
        [rows, columns]: [usize; 2],
        (gated, left): (usize, usize),
    ) -> Self {
        let entries = most_rows * per_row;
        let (inputs, listed, summed) = match stacking {
            Stacking::One | Stacking::Heads(_) if is_split(rows, gated == 2, per_row) => {
                (entries, 0, left.max(gated * SEGMENTS * SPLIT.min(most_rows) * per_row * rows))
            }
            Stacking::One | Stacking::Heads(_) => (entries, 0, left),
            Stacking::Experts(..) => (if in_order { entries } else { most_rows }, entries, 0),
            Stacking::ExpertParts(..) => (entries, entries, entries * rows),
        };
        let after = |begin: usize, bytes: usize| begin + bytes.next_multiple_of(256);
        let pieces = after(0, 4);
        let order = after(pieces, 16 * listed);
        let factors = after(order, 4 * listed);
        let x = after(factors, 4 * inputs);
        // Kernels read a unit beyond the last.
        let sums = after(x, 2 * (inputs.next_multiple_of(8) * columns.next_multiple_of(UNIT) + UNIT));
        Self { pieces, order, factors, x, sums, bytes: after(sums, 4 * summed) }
    }

    /// Of an op that is a product.
    pub(crate) fn of(program: &Program, op: &Op, limits: &Limits, device: &Device) -> Self {
        let product = op.product(program).expect("asked of products");
        let (per_row, count) = product.matrices(program);
        let most_rows = match program.act(product.x).rows {
            Rows::Step => limits.rows,
            Rows::Outputs => limits.outputs,
        };
        let left = wide::sums_left(device, most_rows);
        let parts = product.weights().map(|weight| {
            let [rows, columns] = program.weight(weight).shape;
            let in_order = wide::takes_experts(device, (most_rows * per_row).div_ceil(count));
            let stacking = (per_row, product.stacking, in_order);
            Self::new(most_rows, stacking, [rows / count, columns], (product.weights().count(), left))
        });
        parts.max_by_key(|parts| parts.bytes).expect("a product has a weight")
    }
}

/// Scratch for a product.
pub(crate) fn scratch_bytes(program: &Program, op: &Op, limits: &Limits, device: &Device) -> u64 {
    Parts::of(program, op, limits, device).bytes as u64
}

/// Dynamic shared memory of a block of [`Kernel::Some`]: `Stages` of `kernels/quant/some.cuh`.
fn shared_of_some(matrix: &Matrix, most: usize) -> usize {
    let stage = 8 * unit_bytes(matrix.quant) + 2 * UNIT * most;
    stage * (98304 / stage).min(8)
}

/// Threads of a block of every product.
pub(super) const THREADS: usize = 256;

impl Machine {
    /// Runs a product.
    pub(crate) fn multiply(&mut self, op: &Op, of: &Multiply) -> Result<(), DeviceError> {
        let listed = of.experts();
        // What is staged for others may come in the place of the order of entries.
        self.grouped = self.grouped.filter(|_| listed.is_some());
        let rows = self.rows(of.x);
        let matrix = self.matrix(of.weight);
        let parts = Parts::of(&self.program, op, &self.limits, &self.device);
        let (per_row, count) = match of.stacking {
            Stacking::One => (1, 1),
            Stacking::Heads(heads) => (heads, heads),
            Stacking::Experts(experts, count) | Stacking::ExpertParts(experts, count) => (self.columns(experts), count),
        };
        let inputs_of_row = if matches!(of.stacking, Stacking::Experts(..)) { 1 } else { per_row };
        let rows_of_matrix = self.program.weight(of.weight).shape[0] / count;
        let (quant, is_gated) = (matrix.quant, of.up.is_some());
        let kernel = self.kernel_for((of, quant), [rows, per_row, count]);
        let most = kernel.most();
        let x_stride = self.columns(of.x) / inputs_of_row;
        let [y, z] = match listed {
            None => [count, rows.div_ceil(most)],
            // A row chooses no expert twice.
            Some(_) if rows == 1 => [per_row, 1],
            Some(experts) => [self.group_entries(experts, &parts, [rows * per_row, count, most])?, 1],
        };
        let pieces = listed.map(|_| ([parts.pieces, 0, parts.order], per_row / inputs_of_row, y));
        let wanted = self.wanted(kernel, pieces);
        let [x, factor] = self.stage((of.x, of.weight), &parts, ([rows * inputs_of_row, x_stride], wanted))?;
        if self.staged.is_some_and(|staged| self.act(staged.act) == of.out) || listed.is_some() {
            self.staged = None;
        }
        let matrix = self.matrix(of.weight);
        let at = |part: usize| if listed.is_some() && rows > 1 { self.scratch().at(part).0 } else { 0 };
        let job = Job {
            weight: matrix.at().0,
            up: of.up.map_or(0, |up| self.matrix(up).at().0),
            weight_factor: matrix.factor,
            up_factor: of.up.map_or(1.0, |up| self.matrix(up).factor),
            x: x.0,
            factor: factor.0,
            pieces: at(parts.pieces),
            chosen: listed.filter(|_| rows == 1).map_or(0, |experts| self.act(experts).0),
            piece_count: at(0),
            order: at(parts.order),
            out: of.out.0,
            bias: self.optional(of.bias).0,
            row_gate: of.row_gate.map_or(0, |gate| self.act(gate).0),
            parts: self.scratch().at(parts.sums).0,
            rows: rows_of_matrix as u32,
            units: if matrix.quant == Quant::F32 { matrix.columns } else { matrix.units() } as u32,
            entries: rows as u32,
            matrices: count as u32,
            per_input: (per_row / inputs_of_row) as u32,
            x_stride: if matches!(wanted, ActivationForm::Wide | ActivationForm::Pieces { .. }) {
                rows * per_row
            } else {
                x_stride
            } as u32,
            out_stride: of.out_stride as u32,
            column: of.column as u32,
            activation: activation(of.activation),
            accumulate: flag(of.output == Output::Accumulate),
            scale: of.scale,
            columns: matrix.columns as u32,
            neighbours: if kernel.stays() { self.neighbours() } else { 0 },
            left: self.left.at().0,
            ..bytemuck::Zeroable::zeroed()
        };
        let job = if kernel == Kernel::Ring(1) { self.with_norm(job) } else { job };
        if kernel.stays() && !is_gated && job.neighbours != 0 {
            return self.join(of.weight, job);
        }
        self.launch_joined()?;
        self.launch_product((self.matrix(of.weight), kernel), job, is_gated, [y, z])
    }

    /// How a kernel wants its activations. Of entries of experts: where their pieces, the number of these and the order are in
    /// the scratch, how many share an input, and how many pieces there may be.
    fn wanted(&self, kernel: Kernel, pieces: Option<([usize; 3], usize, usize)>) -> ActivationForm {
        match (kernel, pieces) {
            (Kernel::Wide(most) | Kernel::Experts(most), Some((list, per_input, pieces))) => {
                let list = list.map(|part| self.scratch().at(part).0);
                ActivationForm::Pieces { list, per_input, most: [pieces, most] }
            }
            (Kernel::Wide(_) | Kernel::Experts(_), None) | (Kernel::Parts | Kernel::Narrow(_), _) => {
                ActivationForm::Wide
            }
            (Kernel::Ring(1), _) => ActivationForm::Floats,
            (
                Kernel::Ring(_)
                | Kernel::Float(_)
                | Kernel::Few(_)
                | Kernel::Clustered(_)
                | Kernel::Some(_)
                | Kernel::Split
                | Kernel::Many(_),
                _,
            ) => ActivationForm::Plain,
        }
    }

    /// The kernel for a product of `rows`, each of which meets `per_row` of `count` matrices.
    fn kernel_for(&self, (of, quant): (&Multiply, Quant), [rows, per_row, count]: [usize; 3]) -> Kernel {
        let (device, is_gated) = (&self.device, of.up.is_some());
        let rows_of_matrix = self.program.weight(of.weight).shape[0] / count;
        let usual = (rows * per_row).div_ceil(count);
        let kernel = match of.stacking {
            Stacking::Experts(..) | Stacking::ExpertParts(..)
                if quant != Quant::F32 && rows > 1 && wide::takes_experts(device, usual) =>
            {
                wide::of_experts(quant, usual)
            }
            Stacking::Experts(..) | Stacking::ExpertParts(..) => Kernel::of_experts(quant, rows, usual),
            Stacking::One | Stacking::Heads(_)
                if count == 1 && self.has_narrow(self.matrix(of.weight), rows, is_gated) =>
            {
                Kernel::Narrow(narrow::width(rows_of_matrix, rows))
            }
            Stacking::One | Stacking::Heads(_) if self.has_clustered(self.matrix(of.weight), rows) => {
                Kernel::Clustered(clustered::MOST)
            }
            Stacking::One if quant != Quant::F32 && wide::takes(device, rows) => {
                let units = self.matrix(of.weight).units();
                let wanted = self.width.filter(|width| wide::widths(is_gated).contains(width)).map(Kernel::Wide);
                let best = || wide::best(quant, [rows, rows_of_matrix, units], is_gated, device.multiprocessors());
                wanted
                    .or_else(best)
                    .unwrap_or_else(|| Kernel::new(quant, [rows, rows_of_matrix, count], is_gated, device))
            }
            Stacking::One | Stacking::Heads(_) => Kernel::new(quant, [rows, rows_of_matrix, count], is_gated, device),
        };
        let has_ring = |most: usize| self.has_ring(self.matrix(of.weight), most.min(rows), is_gated);
        if let Kernel::Ring(most) = kernel
            && !has_ring(most)
        {
            Kernel::Few(most.max(8))
        } else {
            kernel
        }
    }

    fn launch_product(
        &self,
        (matrix, kernel): (&Matrix, Kernel),
        job: Job,
        is_gated: bool,
        [y, z]: [usize; 2],
    ) -> Result<(), DeviceError> {
        let quant = matrix.quant;
        let gated = if is_gated { "gated_" } else { "" };
        let suffix = suffix(quant);
        let rows_of_eight = if is_gated { 64 } else { 128 };
        let stages = |most: usize| 3 * 128 * (128 + most);
        let z = if matches!(kernel, Kernel::Some(_) | Kernel::Split) { SEGMENTS } else { z };
        let (name, rows_of_block, shared) = match kernel {
            Kernel::Ring(_) | Kernel::Clustered(_) | Kernel::Narrow(_) => {
                return self.launch_staying(&Together { matrix, jobs: &[job], is_gated, matrices: y });
            }
            Kernel::Float(most) => {
                let of_warp = if z * y > 1 && most > 1 { 4 } else { 1 };
                let lanes = if job.units.is_multiple_of(4) && job.x_stride.is_multiple_of(4) { 4 } else { 1 };
                (format!("{gated}products_f32_{of_warp}x{most}_by_{lanes}"), THREADS / 32 * of_warp, 0)
            }
            Kernel::Few(most) => {
                let rows_of_block = if is_gated || most < 32 { 16 } else { 32 };
                let blocks = (job.rows as usize).div_ceil(rows_of_block) * y * z;
                let is_tall = most == 8 && !is_gated && blocks > 2 * self.device.multiprocessors();
                (format!("{gated}few_{most}_{}{suffix}", if is_tall { "tall_" } else { "" }), rows_of_block, 0)
            }
            Kernel::Some(most) => (format!("{gated}some_{most}_{suffix}"), rows_of_eight, shared_of_some(matrix, most)),
            Kernel::Split => (format!("{gated}split_{SPLIT}_{suffix}"), rows_of_eight, stages(SPLIT)),
            Kernel::Many(most) => (format!("{gated}many_{most}_{suffix}"), rows_of_eight, stages(most)),
            Kernel::Wide(most) => {
                let name = format!("{gated}wide_{most}_{suffix}");
                return self.launch_wide((unit(quant), &name), (is_gated, 1), (job, y * z));
            }
            Kernel::Experts(most) => {
                let name = format!("{gated}experts_{most}_{suffix}");
                return self.launch_wide((unit(quant), &name), (is_gated, 2), (job, y * z));
            }
            Kernel::Parts => {
                let name = format!("{gated}parts_{}_{suffix}", wide::PARTS);
                return self.launch_parts((unit(quant), &name), is_gated, (job, z));
            }
        };
        self.kernel(unit(quant), &name)?
            .grid((job.rows as usize).div_ceil(rows_of_block), y, z)
            .block(THREADS)
            .shared(shared)
            .early()
            .arg(job)
            .launch()?;
        if kernel == Kernel::Split { self.add_parts(job, is_gated) } else { Ok(()) }
    }

    /// Ends products that were left in parts.
    fn add_parts(&self, job: Job, is_gated: bool) -> Result<(), DeviceError> {
        self.kernel("stage", "add_parts")?
            .grid((job.rows as usize).div_ceil(THREADS), (job.entries * job.matrices) as usize, 1)
            .block(THREADS)
            .early()
            .arg(job)
            .arg(flag(is_gated))
            .launch()
    }

    /// Rows of activations as products with a matrix want them, and by what they are to be multiplied. Products that
    /// follow each other share them.
    fn stage(
        &mut self,
        (act, weight): (Act, Weight),
        parts: &Parts,
        ([rows, stride], wanted): ([usize; 2], ActivationForm),
    ) -> Result<[Ptr; 2], DeviceError> {
        let matrix = self.matrix(weight);
        if matrix.quant == Quant::F32 || wanted == ActivationForm::Floats {
            return Ok([self.act(act), Ptr::NULL]);
        }
        let (is_bf16, columns) = (matrix.quant == Quant::Bf16, matrix.columns);
        let padded = matrix.units() * UNIT;
        let [to, factors] = [parts.x, parts.factors].map(|part| self.scratch().at(part));
        let at = [to, if is_bf16 { Ptr::NULL } else { factors }];
        let staged = Staged { act, is_bf16, wanted, rows, stride, columns, at };
        if self.staged == Some(staged) {
            return Ok(at);
        }
        let norm = self.running.and_then(|at| self.norm_staged(at)).filter(|norm| norm.out == act);
        if let Some(norm) = norm {
            self.stage_normed(norm, (rows, wanted == ActivationForm::Wide), (padded, at))?;
            self.staged = Some(staged);
            return Ok(at);
        }
        let (unit, each) = if wanted == ActivationForm::Plain { ("stage", 4) } else { ("stage_wide", 32) };
        let name = format!("{unit}_{}", if is_bf16 { "bf16" } else { "f16" });
        let launch = self.kernel(unit, &name)?.block((padded / each).next_multiple_of(32).clamp(32, 512)).early();
        let launch = launch.arg(self.act(act)).arg(stride as u32).arg(columns as u32).arg(to).arg(padded as u32);
        let launch = match wanted {
            ActivationForm::Floats | ActivationForm::Plain => launch.grid(rows, 1, 1),
            ActivationForm::Wide => launch.grid(rows, 1, 1).arg(rows as u32).arg(wide::StagedPieces::all()),
            ActivationForm::Pieces { list, per_input, most: [pieces, most] } => {
                let entries = rows * per_input;
                launch.grid(most, pieces, 1).arg(entries as u32).arg(wide::StagedPieces::of(list, per_input))
            }
        };
        if is_bf16 {
            launch.launch()?
        } else {
            launch.arg(factors).launch()?
        }
        self.staged = Some(staged);
        Ok(at)
    }

    /// Sorts entries by their experts, and returns how many pieces of at most `most` there may be.
    fn group_entries(
        &mut self,
        experts: Act,
        parts: &Parts,
        [entries, count, most]: [usize; 3],
    ) -> Result<usize, DeviceError> {
        let pieces = experts::most_pieces(entries, count, most);
        // Where products of the same experts follow each other, their order is there.
        let grouped = Grouped { experts, sizes: [entries, count, most], at: [parts.pieces, parts.order] };
        if self.grouped.replace(grouped) == Some(grouped) {
            return Ok(pieces);
        }
        let scratch = self.scratch();
        self.kernel("stage", "group_entries")?
            .early()
            .grid(1, 1, 1)
            .block(entries.max(count).next_multiple_of(32).clamp(32, 1024))
            .shared(4 * count)
            .arg(self.act(experts))
            .arg(entries as u32)
            .arg(count as u32)
            .arg(most as u32)
            .arg(scratch.at(parts.order))
            .arg(scratch.at(parts.pieces))
            .arg(scratch)
            .launch()?;
        Ok(pieces)
    }

    pub(crate) fn linear(&mut self, op: &op::Linear) -> Result<(), DeviceError> {
        let (out, stride) = (self.act(op.out), self.columns(op.out));
        let plain = Multiply::new(op.x, op.weight, Stacking::One, out, stride);
        let op::Linear { column, bias, row_gate, activation, scale, output, .. } = *op;
        let of = Multiply { column, bias, row_gate, activation, scale, output, ..plain };
        self.multiply(&Op::Linear(op.clone()), &of)
    }

    pub(crate) fn gated_linear(&mut self, op: &op::GatedLinear) -> Result<(), DeviceError> {
        let (out, stride) = (self.act(op.out), self.columns(op.out));
        let plain = Multiply::new(op.x, op.gate, Stacking::One, out, stride);
        let of = Multiply { up: Some(op.up), activation: Some(op.activation), ..plain };
        self.multiply(&Op::GatedLinear(op.clone()), &of)
    }

    pub(crate) fn head_linear(&mut self, op: &op::HeadLinear) -> Result<(), DeviceError> {
        let [stacked, inputs] = self.program.weight(op.weight).shape;
        let (heads, outputs) = (op.heads, stacked / op.heads);
        let stride = self.columns(op.out) / heads;
        let of = Multiply::new(op.x, op.weight, Stacking::Heads(heads), self.act(op.out), stride);
        self.multiply(&Op::HeadLinear(op.clone()), &of)?;
        let left_over = stride - outputs;
        let rows = if left_over == 0 { 0 } else { self.rows(op.x) * heads };
        self.kernel("stage", "copy_left_over")?
            .early()
            .grid(rows, 1, 1)
            .block(left_over.next_multiple_of(32).clamp(32, 256))
            .arg(self.act(op.x))
            .arg(self.act(op.out))
            .arg(inputs as u32)
            .arg(outputs as u32)
            .arg(left_over as u32)
            .launch()
    }
}
