"""What the peers of the benchmark share: how a call is timed, and how measurements are served."""
import statistics
import sys
import time


def seconds_per_call(body, seconds, best):
    """Median over samples that are long enough for the clock; the first calls, which compile, do not count. What takes
    more than twice as long as `best`, three times at once, is no rival, and is not asked again."""
    def sample(n):
        before = time.perf_counter()
        for _ in range(n):
            body()
        return (time.perf_counter() - before) / n

    body()
    once = sample(1)
    if once > 2 * best:
        once = min(once, sample(1), sample(1))  # others may have disturbed it
    if once > 2 * best:
        return once
    n = max(1, int(1e-3 / once) + 1)
    samples, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds or len(samples) < 5:
        samples.append(sample(n))
    return statistics.median(samples)


def serve(version, rows):
    """Reads "NAME<tab>SECONDS<tab>CONFIGURATIONS" (divided by "|"; none: all) and answers with lines
    "SECONDS PER CALL<tab>CONFIGURATION", then "done". `rows` has a function by name, which gives a function by
    configuration, which makes what is timed of its own name. It is made once and kept."""
    print(version, flush=True)
    configurations, bodies = {}, {}
    for request in sys.stdin:
        name, seconds, wanted = request.rstrip("\n").split("\t")
        if name not in configurations:
            configurations[name] = rows[name]() if name in rows else {}
        best = float("inf")
        for mode in wanted.split("|") if wanted else configurations[name]:
            try:
                if (name, mode) not in bodies:
                    body = bodies[name, mode] = configurations[name][mode](mode)
                    for _ in range(3):
                        body()
                taken = seconds_per_call(bodies[name, mode], float(seconds), best)
                best = min(best, taken)
                print(f"{taken:.9g}\t{mode}", flush=True)
            except Exception as error:  # a configuration that this version cannot do
                print(f"{version}, {name}, {mode}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        print("done", flush=True)
