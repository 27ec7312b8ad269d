// The growth bench's fit, time bound and plots.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { fit } from '../../bench/growth/fit.ts'
import { plotsOf } from '../../bench/growth/plot.ts'
import { runSweep, type Sweep, tableOf } from '../../bench/growth/sweep.ts'

const options = { large: false, threads: 1, seconds_max: 100 }

const sweep = (at: (size: number) => Promise<Record<string, number>>, onClose = () => {}): Sweep => ({
  name: 'test',
  what: 'things',
  sizes: [10, 100, 1000],
  large: [10_000],
  plots: [
    { title: 'Time', measures: [{ name: 'work <a>', unit: 's', bound: { most: 1.15 } }] },
    { title: 'Memory', measures: [{ name: 'memory', unit: 'MB' }] },
  ],
  open: async () => ({ at, close: async () => onClose() }),
})

test('the exponent is that of the end of the curve, where fixed costs no longer hide it', () => {
  const points = [1, 10, 1e4, 1e5, 1e6].map((x) => [x, 50 + 0.3 * x ** 1.5] as const)
  const growth = fit(points)!
  assert.ok(Math.abs(growth.exponent - 1.5) < 0.001, `${growth.exponent}`)
  assert.ok(Math.abs(growth.at(1e5) / (0.3 * 1e5 ** 1.5) - 1) < 0.01)
  assert.equal(growth.from, 1e4)
})

test('a single point and a value of 0 have no exponent, and a bound without one does not hold', async () => {
  assert.equal(fit([[10, 1]]), undefined)
  assert.equal(
    fit([
      [10, 0],
      [100, 1],
    ]),
    undefined,
  )
  const result = await runSweep({ ...sweep(async () => ({ 'work <a>': 1 })), sizes: [10] }, options, () => {})
  assert.equal(result.plots[0]!.curves[0]!.holds, false)
})

test('a curve above its bound is reported as missed', async () => {
  const at = (exponent: number) => sweep(async (size) => ({ 'work <a>': size ** exponent, memory: 5 }))
  const holds = async (exponent: number) =>
    (await runSweep(at(exponent), options, () => {})).plots.map(({ curves }) => curves[0]!.holds)
  assert.deepEqual(await holds(1.1), [true, null])
  assert.deepEqual(await holds(1.2), [false, null])
})

test('a size that would take longer than the bound is left out, and the table says so', async () => {
  const sizes: number[] = []
  let closed = 0
  let now_ms = 0
  const slower = sweep(
    async (size) => {
      sizes.push(size)
      now_ms += size * 100
      return { 'work <a>': size, memory: 5 }
    },
    () => closed++,
  )
  const result = await runSweep(
    slower,
    { large: true, threads: 1, seconds_max: 20 },
    () => {},
    () => now_ms,
  )
  assert.deepEqual(sizes, [10, 100])
  assert.deepEqual(result.left_out, { size: 1000, seconds: 100 })
  assert.match(tableOf(result), /Left out: 1,000, which would take 100 s/)
  assert.equal(closed, 1)
})

test('a sweep that fails is closed', async () => {
  let closed = 0
  const failing = sweep(
    async () => {
      throw new Error('no')
    },
    () => closed++,
  )
  await assert.rejects(
    runSweep(failing, options, () => {}),
    /no/,
  )
  assert.equal(closed, 1)
})

test('plots have every point and line inside, and the same content in both themes', async () => {
  const result = await runSweep(
    sweep(async (size) => ({ 'work <a>': size / 3000, memory: 5 })),
    { ...options, large: true },
    () => {},
  )
  for (const theme of ['light', 'dark'] as const) {
    const svg = plotsOf(result, theme)
    assert.ok(svg.length < 20_000)
    assert.match(svg, /^<svg [^>]*width="760" height="\d+"/)
    assert.match(svg, /work &lt;a&gt;, s, exponent 1\.00/)
    assert.doesNotMatch(svg, /NaN|Infinity|undefined|<script|style=/)
    assert.equal(svg.match(/<circle/g)!.length, 2 * 4 + 2, 'points and legends')
    for (const [, at] of svg.matchAll(/ c?[xy][12]?="([^"]+)"/g)) assert.ok(Number(at) >= 0 && Number(at) <= 380, at)
  }
  assert.notEqual(plotsOf(result, 'light'), plotsOf(result, 'dark'))
})
