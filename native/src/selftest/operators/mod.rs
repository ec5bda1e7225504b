//! Every operator on a card against the CPU in `f64`, in sizes that fill no tile.
//!
//! - In: a card, and how much to test.
//! - Out: one row per case, with its error and its limit.
//! - Knows: the kernels of both sides.

use std::sync::Arc;

use pipeplan_core::graph::Kernel;

use self::case::limit;
use self::cases::cases_to;
use super::{Extent, News, Row, Rows};
use crate::backend::BackendError;
use crate::backend::cuda::card::{Card, CardError, Memory};
use crate::backend::cuda::expert_parallel;
use crate::backend::cuda::launch::{Context, Place};
use crate::backend::peers::Alone;

mod case;
mod cases;
mod fused;

pub use self::case::{Case, Tensor, relative_error};
pub use self::cases::{attention_cases, cases};
pub use self::fused::{fused, fused_norms};

/// Every operator on `card`, or briefly those that are not made of products, each as a separate section.
pub(super) fn check<F: FnMut(News)>(card: &Arc<dyn Card>, extent: Extent, rows: &mut Rows<F>) {
    const GROUP: &str = "operators";
    let with_products = extent == Extent::Whole;
    let is_asked = |(_, case): &(usize, &Case)| with_products || !case.is_of_products();
    for (number, case) in cases_to(extent).iter().enumerate().filter(is_asked) {
        if rows.is_over() {
            break;
        }
        rows.section(GROUP, &format!("{number}, {}", case.name()), |rows| {
            rows.push(case.checked(card, extent));
            Ok::<_, CardError>(())
        });
    }
    if with_products {
        rows.section(GROUP, "products that take in what comes behind", |rows| {
            fused(card).into_iter().for_each(|row| rows.push(row));
            Ok::<_, CardError>(())
        });
    }
    rows.section(GROUP, "norms that take in what comes behind", |rows| {
        fused_norms(card).into_iter().for_each(|row| rows.push(row));
        Ok::<_, CardError>(())
    });
    rows.section(GROUP, "what is dealt to ranks", |rows| {
        dealt(card).into_iter().for_each(|row| rows.push(row));
        Ok::<_, CardError>(())
    });
    rows.groundwork(GROUP, "giving memory back", |_| card.trim());
}

/// Whether `card` still takes bytes and gives them back: after some errors, such as a kernel that writes where nothing is,
/// a process gets no other answer from it than that error.
pub(super) fn answers(card: &Arc<dyn Card>) -> bool {
    let sent = [0x5a; 64];
    let read = Memory::holding(card, &sent).and_then(|memory| memory.read());
    read.is_ok_and(|read| read == sent) && card.finish().is_ok()
}

/// What is split over ranks, among one that holds all experts: copies leave and arrive as among more.
pub fn dealt(card: &Arc<dyn Card>) -> Vec<Row> {
    let is_dealt = |case: &Case| {
        use Kernel::{Combine, CombineGrad, Dispatch, DispatchGrad};
        matches!(case.kernel, Dispatch { .. } | DispatchGrad { .. } | Combine { .. } | CombineGrad { .. })
    };
    let row = |case: Case| {
        let name = format!("{}, dealt", case.name());
        let run = |context: &mut Context, kernel: &Kernel, inputs: &[Place<'_>], outputs: &[Place<'_>]| {
            expert_parallel::run(context, kernel, inputs, outputs, &mut Alone::default())?;
            Ok::<_, BackendError>(())
        };
        match case.measured_by(card, None, run) {
            Ok(measured) => {
                Row::error("operators", name, case.error(&case.reference(), &measured), limit(case.format))
            }
            Err(error) => Row::broken("operators", name, &error),
        }
    };
    cases().into_iter().filter(is_dealt).map(row).collect()
}
