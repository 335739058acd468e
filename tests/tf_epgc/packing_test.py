"""The plan of packs."""

import unittest

from tf_epgc.packing import PackPlan, TensorSpec, default_bytes_per_pack, plan_packs


def plan(sizes, min_elements=10, bytes_per_pack=400, dtypes=None):
    dtypes = dtypes or ["float32"] * len(sizes)
    return plan_packs([TensorSpec(n, d) for n, d in zip(sizes, dtypes, strict=True)], min_elements, bytes_per_pack)


class PlanTest(unittest.TestCase):
    def test_last_gradients_come_first(self):
        self.assertEqual(plan([100, 50, 60, 100]), PackPlan(((3,), (2, 1), (0,)), (), ()))

    def test_small_ones_travel_together(self):
        self.assertEqual(plan([9, 100, 0, 9]), PackPlan(((1,),), (3, 2, 0), ()))

    def test_small_float64_is_exact(self):
        self.assertEqual(plan([9, 100], dtypes=["float64", "float64"]), PackPlan(((1,),), (), (0,)))

    def test_one_pack(self):
        self.assertEqual(plan([1000, 1000], bytes_per_pack=0).coded, ((1, 0),))

    def test_default_is_a_sixth_within_limits(self):
        mebibytes = [default_bytes_per_pack(n * 2**20) / 2**20 for n in (0, 1, 24, 36, 96, 1000)]
        self.assertEqual(mebibytes, [4, 4, 4, 6, 16, 16])

    def test_default_packs(self):
        self.assertEqual(list(map(len, plan([2**18] * 60, bytes_per_pack=None).coded)), [10] * 6)

    def test_unknown_sizes_are_coded(self):
        self.assertEqual(plan([None, 5]).coded, ((0,),))

    def test_nothing(self):
        self.assertEqual(plan([]), PackPlan((), (), ()))


if __name__ == "__main__":
    unittest.main()
