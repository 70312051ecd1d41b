//! Transforms as maps of indices: which row, column and number of the source each one of the file is.

use super::expression::Values;
use super::table::Transform;
use anyhow::{Result, bail};

/// How the elements of a tensor are to be fetched. Rows are along all dimensions but the last.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Layout {
    /// Sizes of the result, the contiguous one last.
    pub(super) shape: Vec<usize>,
    /// The source row of each row; `None` if they are the same.
    pub(super) rows: Option<Vec<usize>>,
    /// The source column of each column; `None` if they are the same.
    pub(super) columns: Option<Vec<usize>>,
    /// Applied to each number, in order.
    pub(super) changes: Vec<Change>,
    /// What the numbers of each row are multiplied by after all changes; `None` if by nothing.
    pub(super) factors: Option<Vec<f32>>,
    /// Whether the last two dimensions are swapped after all else; `shape`, `rows` and `columns` say what was before.
    pub(super) transposed: bool,
}

/// A change of each number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Change {
    AddOne,
    NegateExp,
}

impl Change {
    pub(super) fn apply(self, x: f32) -> f32 {
        match self {
            Change::AddOne => x + 1.0,
            Change::NegateExp => -x.exp(),
        }
    }
}

/// Which index a permutation acts on.
#[derive(Clone, Copy, PartialEq)]
enum Axis {
    Rows,
    Columns,
}

impl Layout {
    /// A source of this shape after all transforms.
    pub(super) fn of(shape: Vec<usize>, transforms: &[Transform], values: &Values) -> Result<Layout> {
        let mut layout = Layout::new(shape);
        for transform in transforms {
            layout.apply(transform, values)?;
        }
        Ok(layout)
    }

    /// A source of this shape as it is.
    fn new(shape: Vec<usize>) -> Layout {
        Layout { shape, rows: None, columns: None, changes: Vec::new(), factors: None, transposed: false }
    }

    /// Sizes in the file, the contiguous one last.
    pub(super) fn file_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let [.., outer, inner] = shape.as_mut_slice()
            && self.transposed
        {
            std::mem::swap(outer, inner);
        }
        shape
    }

    /// Elements along the contiguous dimension.
    pub(super) fn column_count(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Elements along all other dimensions together.
    pub(super) fn row_count(&self) -> usize {
        self.shape.split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// Applies one transform.
    fn apply(&mut self, transform: &Transform, values: &Values) -> Result<()> {
        match transform {
            Transform::AddOne => self.changes.push(Change::AddOne),
            Transform::NegateExp => self.changes.push(Change::NegateExp),
            Transform::Reshape(shape) => self.reshape(values.shape(shape)?)?,
            Transform::PairRope { heads } => {
                let (axis, length) = self.outer();
                let heads = values.count(heads)?;
                let size = exact(length, heads)?;
                let half = exact(size, 2)?;
                self.gather(axis, (0..length).map(|at| at / size * size + at % 2 * half + at % size / 2).collect());
            }
            Transform::GroupedToTiled { skip, groups, members, size } => {
                let (axis, length) = self.outer();
                let sizes = [values.count(groups)?, values.count(members)?, values.count(size)?];
                self.gather(axis, tile(length, values.count(skip)?, sizes)?);
            }
            Transform::GroupedToTiledColumns { groups, members, size } => {
                let sizes = [values.count(groups)?, values.count(members)?, values.count(size)?];
                self.gather(Axis::Columns, tile(self.column_count(), 0, sizes)?);
            }
            Transform::TakeRows { groups, slices } => self.take_rows(values, groups, slices)?,
            Transform::ScaleRows(parts) => self.scale_rows(values, parts)?,
            Transform::Transpose => {
                if self.shape.len() < 2 {
                    bail!("has the shape {:?}, expected two dimensions to swap", self.shape);
                }
                self.transposed = true;
            }
        }
        Ok(())
    }

    /// The axis that "rows" means here, with its length: of one dimension it is that one.
    fn outer(&self) -> (Axis, usize) {
        if self.shape.len() == 1 { (Axis::Columns, self.shape[0]) } else { (Axis::Rows, self.row_count()) }
    }

    fn gather(&mut self, axis: Axis, order: Vec<usize>) {
        let map = if axis == Axis::Rows { &mut self.rows } else { &mut self.columns };
        *map = Some(match map.take() {
            Some(before) => order.into_iter().map(|at| before[at]).collect(),
            None => order,
        });
    }

    /// Another shape for the same elements, which must keep the columns unless nothing was permuted.
    fn reshape(&mut self, shape: Vec<usize>) -> Result<()> {
        let same = shape.iter().product::<usize>() == self.shape.iter().product::<usize>();
        let permuted = self.rows.is_some() || self.columns.is_some();
        if !same || (permuted && shape.last() != self.shape.last()) {
            bail!("cannot be reshaped from {:?} to {shape:?}", self.shape);
        }
        self.shape = shape;
        Ok(())
    }

    fn take_rows(&mut self, values: &Values, groups: &str, slices: &[(&str, &str)]) -> Result<()> {
        let groups = values.count(groups)?;
        let stride = exact(self.row_count(), groups)?;
        let mut order = Vec::new();
        for (first, count) in slices {
            let (first, count) = (values.count(first)?, values.count(count)?);
            if first + count > stride {
                bail!("has groups of {stride} rows, expected {} or more", first + count);
            }
            order.extend((0..groups).flat_map(|group| (0..count).map(move |at| group * stride + first + at)));
        }
        self.shape = vec![order.len(), self.column_count()];
        self.gather(Axis::Rows, order);
        Ok(())
    }

    fn scale_rows(&mut self, values: &Values, parts: &[(&str, &str)]) -> Result<()> {
        let rows = self.row_count();
        let mut factors = Vec::with_capacity(rows);
        for (count, factor) in parts {
            let (count, factor) = (values.count(count)?, values.evaluate(factor)?);
            if count > rows - factors.len() {
                bail!("has {rows} rows, expected {} or more", factors.len() + count);
            }
            factors.resize(factors.len() + count, factor as f32);
        }
        // Rows behind the last run stay as they are.
        factors.resize(rows, 1.0);
        self.factors = Some(factors);
        Ok(())
    }
}

/// `length / parts`, which must be whole.
fn exact(length: usize, parts: usize) -> Result<usize> {
    if parts == 0 || !length.is_multiple_of(parts) {
        bail!("has {length} rows, expected a multiple of {parts}");
    }
    Ok(length / parts)
}

/// Sources of the indices after (group, member) became (member, group) behind the first `skip`.
fn tile(length: usize, skip: usize, [groups, members, size]: [usize; 3]) -> Result<Vec<usize>> {
    let tiled = groups.checked_mul(members).and_then(|blocks| blocks.checked_mul(size));
    if length.checked_sub(skip) != tiled {
        bail!("has {length} rows, expected {skip} + {groups} * {members} * {size}");
    }
    let source = |at: usize| {
        let (block, inner) = (at / size, at % size);
        let (member, group) = (block / groups, block % groups);
        skip + (group * members + member) * size + inner
    };
    Ok((0..skip).chain((0..length - skip).map(source)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(shape: &[usize], transforms: &[Transform]) -> Layout {
        Layout::of(shape.to_vec(), transforms, &Values::default()).unwrap()
    }

    #[test]
    fn rope_pairs_the_halves_of_each_head() {
        let pair = [Transform::PairRope { heads: "2" }];
        let order = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11];
        assert_eq!(layout(&[12, 5], &pair).rows.unwrap(), order);
        assert_eq!(layout(&[12], &pair).columns.unwrap(), order);
        assert!(Layout::new(vec![6, 5]).apply(&Transform::PairRope { heads: "4" }, &Values::default()).is_err());
        assert!(Layout::new(vec![6, 5]).apply(&Transform::PairRope { heads: "2" }, &Values::default()).is_err());
    }

    #[test]
    fn groups_become_tiles_behind_what_is_skipped() {
        let tile = |skip, size| Transform::GroupedToTiled { skip, groups: "2", members: "2", size };
        assert_eq!(layout(&[4, 3], &[tile("0", "1")]).rows.unwrap(), [0, 2, 1, 3]);
        assert_eq!(layout(&[10, 3], &[tile("2", "2")]).rows.unwrap(), [0, 1, 2, 3, 6, 7, 4, 5, 8, 9]);
        assert!(Layout::new(vec![9, 3]).apply(&tile("2", "2"), &Values::default()).is_err());
        let columns = Transform::GroupedToTiledColumns { groups: "3", members: "2", size: "1" };
        assert_eq!(layout(&[2, 6], &[columns]).columns.unwrap(), [0, 2, 4, 1, 3, 5]);
    }

    #[test]
    fn slices_of_groups_are_taken_slice_by_slice() {
        let take = Transform::TakeRows { groups: "2", slices: &[("0", "1"), ("1", "2")] };
        let taken = layout(&[8, 3], &[take]);
        assert_eq!(taken.rows.unwrap(), [0, 4, 1, 2, 5, 6]);
        assert_eq!(taken.shape, [6, 3]);
        let halves = [Transform::TakeRows { groups: "2", slices: &[("2", "2")] }, Transform::Reshape("2, 2, 3")];
        let upper = layout(&[2, 4, 3], &halves);
        assert_eq!((upper.rows.unwrap(), upper.shape), (vec![2, 3, 6, 7], vec![2, 2, 3]));
        let too_many = Transform::TakeRows { groups: "2", slices: &[("2", "3")] };
        assert!(Layout::new(vec![8, 3]).apply(&too_many, &Values::default()).is_err());
    }

    #[test]
    fn runs_of_rows_are_scaled_and_dimensions_swapped() {
        let scaled = layout(&[4, 3], &[Transform::ScaleRows(&[("1", "2*2"), ("2", "1/2")])]);
        assert_eq!(scaled.factors.unwrap(), [4.0, 0.5, 0.5, 1.0]);
        let too_many = Transform::ScaleRows(&[("3", "1"), ("2", "1")]);
        assert!(Layout::new(vec![4, 3]).apply(&too_many, &Values::default()).is_err());
        let swapped = layout(&[2, 4, 3], &[Transform::Transpose]);
        assert_eq!((swapped.file_shape(), swapped.shape), (vec![2, 3, 4], vec![2, 4, 3]));
        assert!(Layout::new(vec![4]).apply(&Transform::Transpose, &Values::default()).is_err());
    }

    #[test]
    fn maps_compose_and_reshapes_keep_them_true() {
        let twice = [
            Transform::Reshape("4, 3"),
            Transform::PairRope { heads: "1" },
            Transform::PairRope { heads: "1" },
            Transform::AddOne,
        ];
        let composed = layout(&[4, 1, 3], &twice);
        assert_eq!(composed.rows.unwrap(), [0, 1, 2, 3]);
        assert_eq!(composed.changes, [Change::AddOne]);
        let mut permuted = layout(&[4, 3], &[Transform::PairRope { heads: "1" }]);
        assert!(permuted.apply(&Transform::Reshape("3, 4"), &Values::default()).is_err());
        assert!(permuted.apply(&Transform::Reshape("5, 3"), &Values::default()).is_err());
    }
}
