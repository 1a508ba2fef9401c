"""What somebody takes who is told in advance how fast the links will be: for every token the best of plans that were made for different rates, in
the simulator, changing from one to the other for nothing. No plan for links of any rate could be better, as far as `lime plan` finds it.
"""
import json
import subprocess

PLANNED_MBIT = (50, 75, 100, 150, 200, 250)


def simulated_ms(lime, plan, link_speed):
    """Per step of a plan over links `link_speed` times as fast as planned."""
    words = [str(lime), "simulate", "--plan", plan["path"], "--json", "--steps", "1", "--link-speed", repr(link_speed)]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["ms_per_step"]


class Oracle:
    """`plans`: {Mbit/s that it was made for: plan}; `fixed_mbit`: that of the plan to compare with."""

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
