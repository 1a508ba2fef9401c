"""An oracle that knows the links' rates in advance. For every token it uses the best of several
plans, each made for another rate, and changes between plans at no cost. Times come from the
simulator. No plan for links of any rate can be better, if `lime plan` finds the best ones.
"""
import json
import subprocess

PLANNED_MBIT = (50, 75, 100, 150, 200, 250)


def simulated_ms(lime, plan, link_speed):
    """Milliseconds per step of a plan over links `link_speed` times as fast as planned."""
    words = [str(lime), "simulate", "--plan", plan["path"], "--json", "--steps", "1", "--link-speed", repr(link_speed)]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["ms_per_step"]


class Oracle:
    """`plans`: {Mbit/s of its links: plan}. `fixed_mbit`: the rate of the plan to compare with."""

    def __init__(self, plans, fixed_mbit, simulate):
        self.plans, self.fixed_mbit, self.simulate, self.known = plans, fixed_mbit, simulate, {}

    def ms(self, planned, mbit):
        if (planned, mbit) not in self.known:
            self.known[planned, mbit] = self.simulate(self.plans[planned], mbit / planned)
        return self.known[planned, mbit]

    def beside(self, rates):
        """Milliseconds per step over tokens at these rates, of the fixed plan and of the oracle."""
        fixed = [self.ms(self.fixed_mbit, mbit) for mbit in rates]
        best = [min(self.ms(planned, mbit) for planned in self.plans) for mbit in rates]
        return sum(fixed) / len(rates), sum(best) / len(rates)
