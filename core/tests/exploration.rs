//! The checker's verdict on transports against every interleaving of small programs, explored one by one. The checker follows a
//! single order; this test proves that one order is enough.

mod explorer;

use explorer::{Draw, SHAPES, TRANSPORTS, World, agree, problem};
use pipeplan_core::program::lower::{Lowering, lower_as};
use pipeplan_core::program::{Payload, Step, Transport};
use pipeplan_core::schedule::find;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn verdicts_are_those_of_exhaustive_exploration(
        shape in 0..SHAPES.len(),
        lowering in 0usize..4,
        transport in 0..TRANSPORTS.len(),
        moves in proptest::collection::vec((0usize..3, 0usize..40, 1usize..5), 0..6),
    ) {
        let said = agree(Draw { shape, lowering, transport, moves });
        prop_assert_eq!(said, Ok(()));
    }
}

#[test]
fn the_explorer_sees_the_plainest_hang() {
    let problem = problem(2, 1, 2, "linear");
    let schedule = find("1f1b").expect("published").build(&problem).expect("exists");
    let careless = lower_as(&problem, &schedule, Lowering::InPieces).expect("lowers");
    assert!(World::new(&careless, Transport::Rendezvous).can_hang());
    assert!(!World::new(&careless, Transport::Buffered { slots: 1 }).can_hang());
    assert!(matches!(careless.rows[0][1], Step::Transfer(ref group) if group[0].payload == Payload::Activation));
}
