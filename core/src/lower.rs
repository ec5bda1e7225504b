//! From a schedule to what ranks execute.
