pub fn dot(fabric: &crate::fabric::Fabric) -> String { String::new() }
