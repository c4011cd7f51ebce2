//! The remainder of a division of large numbers, in time that depends on their lengths only.

/// `value` modulo `modulus`, both with the most significant byte first; as long as the modulus.
pub(super) fn remainder(value: &[u8], modulus: &[u8]) -> Vec<u8> {
    // One byte more, for the doubling.
    let divisor: Vec<u16> = std::iter::once(0).chain(modulus.iter().copied()).map(u16::from).collect();
    let mut rest = vec![0_u16; divisor.len()];
    let mut less = rest.clone();
    for byte in value {
        for shift in (0..8).rev() {
            double(&mut rest, u16::from(byte >> shift & 1));
            let borrow = subtract(&rest, &divisor, &mut less);
            // All bits set: the rest was the smaller one, and stays.
            let stays = borrow.wrapping_neg();
            for (digit, less) in rest.iter_mut().zip(&less) {
                *digit = (*digit & stays) | (less & !stays);
            }
        }
    }
    rest.iter().skip(1).map(|digit| digit.to_be_bytes()[1]).collect()
}

/// Twice a number, plus a bit. Each digit is one byte.
fn double(number: &mut [u16], bit: u16) {
    let mut carry = bit;
    for digit in number.iter_mut().rev() {
        let doubled = *digit << 1 | carry;
        *digit = doubled & 0xff;
        carry = doubled >> 8;
    }
}

/// The difference of two numbers of the same length; 1 if it is negative.
fn subtract(from: &[u16], what: &[u16], difference: &mut [u16]) -> u16 {
    let mut borrow = 0;
    for ((into, a), b) in difference.iter_mut().zip(from).zip(what).rev() {
        let digit = 0x100 + a - b - borrow;
        *into = digit & 0xff;
        borrow = 1 - (digit >> 8);
    }
    borrow
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_what_the_processor_computes(value: u128, modulus in 1..=u64::MAX) {
            let found = remainder(&value.to_be_bytes(), &modulus.to_be_bytes());
            let expected = u64::try_from(value % u128::from(modulus)).unwrap();
            prop_assert_eq!(found, expected.to_be_bytes());
        }

        #[test]
        fn a_multiple_leaves_what_was_added(factor: u64, modulus in 1_u64.., rest: u64) {
            let rest = rest % modulus;
            let value = u128::from(factor) * u128::from(modulus) + u128::from(rest);
            prop_assert_eq!(remainder(&value.to_be_bytes(), &modulus.to_be_bytes()), rest.to_be_bytes());
        }
    }
}
