//! Arguments and results that may be nested.

use super::tensor::{DistTensor, Tensor};

/// A leaf, or a tuple or list of trees.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree<L> {
    /// One value.
    Leaf(L),
    /// Several.
    Node(Vec<Tree<L>>),
}

impl<L> Tree<L> {
    /// The leaves from left to right.
    pub fn leaves(&self) -> Vec<&L> {
        let mut leaves = Vec::new();
        let mut rest = vec![self];
        while let Some(tree) = rest.pop() {
            match tree {
                Tree::Leaf(leaf) => leaves.push(leaf),
                Tree::Node(trees) => rest.extend(trees.iter().rev()),
            }
        }
        leaves
    }

    /// The same tree with `change` applied to each leaf, from left to right; stops at the first error.
    ///
    /// # Errors
    /// What `change` returns.
    pub fn try_map<N, E>(self, change: &mut dyn FnMut(L) -> Result<N, E>) -> Result<Tree<N>, E> {
        match self {
            Tree::Leaf(leaf) => change(leaf).map(Tree::Leaf),
            Tree::Node(trees) => {
                trees.into_iter().map(|tree| tree.try_map(change)).collect::<Result<_, _>>().map(Tree::Node)
            }
        }
    }
}

/// What a function takes or gives back: a tensor, plain or distributed, or something that is none.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<T> {
    /// This rank's own tensor.
    Plain(Tensor<T>),
    /// A tensor that the ranks of a mesh hold together.
    Distributed(DistTensor<T>),
    /// No tensor: a number.
    Number(f64),
    /// No tensor: a text.
    Text(String),
    /// Nothing at all.
    None,
}

impl<T> Value<T> {
    /// What it is, for a message.
    pub const fn kind(&self) -> &'static str {
        match self {
            Value::Plain(_) => "a plain tensor",
            Value::Distributed(_) => "a distributed tensor",
            Value::Number(_) => "a number",
            Value::Text(_) => "a text",
            Value::None => "nothing",
        }
    }
}

/// One argument or result.
pub type Item<T> = Tree<Value<T>>;

impl<T> From<Tensor<T>> for Item<T> {
    fn from(tensor: Tensor<T>) -> Item<T> {
        Tree::Leaf(Value::Plain(tensor))
    }
}

impl<T> From<DistTensor<T>> for Item<T> {
    fn from(tensor: DistTensor<T>) -> Item<T> {
        Tree::Leaf(Value::Distributed(tensor))
    }
}
