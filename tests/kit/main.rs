//! The conformance kit for programs of provider `external`: programs that keep every promise, and programs that break one.

mod broken;
mod good;
mod interrupted;
mod site;
