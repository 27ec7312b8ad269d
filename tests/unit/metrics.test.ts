// The metrics that requests count into, in the text that Prometheus reads.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createMetrics, type Declarations } from '../../telemetry/metrics.ts'

const base = { help: 'Help.', unit: 'requests', across: 'sum' } as const
const declarations = {
  plain: { ...base, type: 'counter', name: 'plain_total' },
  labelled: { ...base, type: 'counter', name: 'labelled_total', labels: ['kind', 'outcome'] },
  level: { ...base, type: 'gauge', name: 'level' },
  seconds: { ...base, type: 'histogram', name: 'seconds', labels: ['base'], buckets: [0.005, 1] },
} as const satisfies Declarations

test('values are written under their labels, a histogram with sums up to each bound', async () => {
  const { registry, metrics } = createMetrics(declarations)
  metrics.plain.inc()
  metrics.plain.inc(2)
  metrics.labelled.inc({ kind: 'chat', outcome: 'complete' })
  // The order of the fields says nothing.
  metrics.labelled.inc({ outcome: 'complete', kind: 'chat' }, 4)
  metrics.labelled.inc({ kind: 'chat', outcome: 'bro"ken' }, 0)
  metrics.level.inc()
  metrics.level.dec()
  metrics.level.set(7)
  // A value on a bound belongs to it.
  for (const value of [0.005, 0.5, 3]) metrics.seconds.observe({ base: 'a' }, value)
  assert.equal(
    await registry.metrics(),
    [
      '# HELP plain_total Help.\n# TYPE plain_total counter\nplain_total 3\n',
      '# HELP labelled_total Help.\n# TYPE labelled_total counter',
      'labelled_total{kind="chat",outcome="complete"} 5',
      'labelled_total{kind="chat",outcome="bro\\"ken"} 0\n',
      '# HELP level Help.\n# TYPE level gauge\nlevel 7\n',
      '# HELP seconds Help.\n# TYPE seconds histogram',
      'seconds_bucket{le="0.005",base="a"} 1',
      'seconds_bucket{le="1",base="a"} 2',
      'seconds_bucket{le="+Inf",base="a"} 3',
      'seconds_sum{base="a"} 3.505',
      'seconds_count{base="a"} 3\n',
    ].join('\n'),
  )
})

test('without labels a value is there from the start; a reset drops all series with labels', async () => {
  const { registry, metrics } = createMetrics(declarations)
  metrics.labelled.inc({ kind: 'chat', outcome: 'complete' })
  metrics.labelled.reset()
  metrics.level.set(3)
  metrics.level.reset()
  const lines = (await registry.metrics()).split('\n').filter((line) => line && !line.startsWith('#'))
  assert.deepEqual(lines, ['plain_total 0', 'level 0'])
})
