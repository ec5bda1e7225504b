//! Figures of papers and of other programs, held against pipeplan's answers.
