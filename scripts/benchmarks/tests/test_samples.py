"""Statistics, and the order in which samples are taken."""

import unittest

from benchmarks.samples import (
    collect,
    interleave,
    interquartile_mean,
    quantile,
    ratio,
    span,
    spread,
)


class Interleaving(unittest.TestCase):
    def test_ways_alternate_and_the_warm_up_is_dropped(self):
        order = []

        def way(name):
            order.append(name)
            return len(order)

        found = interleave({name: lambda name=name: way(name) for name in "AB"}, 2, warm_up=1)
        self.assertEqual("".join(order), "ABABAB")
        self.assertEqual(found, {"A": [3, 5], "B": [4, 6]})

    def test_a_round_may_take_several_samples(self):
        numbers = iter(range(3))
        found = collect(lambda: dict.fromkeys(("one", "other"), next(numbers)), 2, warm_up=1)
        self.assertEqual(found, {"one": [1, 2], "other": [1, 2]})

    def test_an_error_ends_the_measurement(self):
        with self.assertRaises(ZeroDivisionError):
            interleave({"A": lambda: 1 / 0}, 1)


class Statistics(unittest.TestCase):
    def test_a_quantile_is_one_of_the_values(self):
        values = list(range(100, 0, -1))
        self.assertEqual([quantile(values, part) for part in (0, 0.25, 0.5, 0.95, 1)], [1, 26, 51, 96, 100])
        self.assertEqual(quantile([7], 0.95), 7)

    def test_the_interquartile_mean_ignores_both_ends(self):
        self.assertEqual(interquartile_mean([1000, 2, 3, 4, 5, 6, 7, -1000]), 4.5)
        self.assertEqual(interquartile_mean([2, 4, 6]), 4)

    def test_a_spread_has_median_p95_minimum_and_maximum(self):
        self.assertEqual(spread([0.003, 0.001, 0.002]), "2.0 ms (p95 3.0, 1.0–3.0)")
        self.assertEqual(spread([1.5, 2.5], 1, 2, "s"), "2.00 s (p95 2.50, 1.50–2.50)")

    def test_a_span_of_one_value_is_the_value(self):
        self.assertEqual(span([1.5]), "1.50 s")
        self.assertEqual(span([70, 72, 71], "MB"), "71.00 MB (70.00–72.00, n = 3)")

    def test_a_ratio_is_that_of_the_pairs(self):
        # The ratio of the medians would be 2.
        value, text = ratio([10, 20, 90], [10, 10, 30])
        self.assertEqual(value, 2)
        self.assertEqual(text, "2.00 × (IQR of 3 pairs 1.00–3.00)")
        value, _ = ratio([1, 4, 9], [1, 1, 9])
        self.assertEqual(value, 1)

    def test_sides_of_a_pair_cannot_be_missing(self):
        with self.assertRaises(ValueError):
            ratio([1, 2], [1])


if __name__ == "__main__":
    unittest.main()
