//! Every plan is judged again by code that shares nothing with the planner.
