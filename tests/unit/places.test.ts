// Places for replicas: sets of cores, GPUs, and memory.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseGpu } from '../../lib/nvidia-gpus.ts'
import { parseRanges } from '../../lib/usable-cores.ts'
import { classOf, type Gpu, gpuOf } from '../../server/features/scaling/gpus.ts'
import { createPlaces, type Place, ranges } from '../../server/features/scaling/places.ts'

const GB = 1e9
const gpu = (index: number, free_bytes = 80 * GB): Gpu => ({
  index,
  uuid: `GPU-${index}`,
  name: 'NVIDIA H100 80GB HBM3',
  free_bytes,
  total_bytes: 80 * GB,
  utilization: 0,
})
const h100 = 'nvidia-h100-80gb-hbm3'
const places = (more: Partial<Parameters<typeof createPlaces>[0]> = {}) =>
  createPlaces({
    cores: [0, 1, 2, 3, 4, 5, 6],
    cores_per_replica: 3,
    gpus: async () => [],
    pins: true,
    available_bytes: () => 100 * GB,
    total_bytes: 64 * GB,
    ...more,
  })
const taken = (place: Place | { refused: string }): Place => {
  assert.ok(!('refused' in place), JSON.stringify(place))
  return place
}
const refusal = (place: Place | { refused: string }): string => {
  assert.ok('refused' in place)
  return place.refused
}

test('replicas on cores share no core, and a place that is released can be taken again', async () => {
  const all = places()
  assert.deepEqual(await all.classes(), [{ name: 'cpu', places: 2, free: 2 }])
  const first = taken(await all.take('cpu', 'a', GB))
  const second = taken(await all.take('cpu', 'b', GB))
  assert.deepEqual(
    [first.placement.cores, second.placement.cores],
    [
      [0, 1, 2],
      [3, 4, 5],
    ],
  )
  assert.equal(first.placement.name, 'cores 0-2')
  assert.equal(first.placement.cache_bytes, 8 * GB, 'a quarter of the memory for all')
  assert.match(refusal(await all.take('cpu', 'a', GB)), /All 2 places of the class cpu are taken; each has 3 cores/)
  assert.equal(await all.room('cpu', 'a'), 1)
  first.release()
  assert.equal(await all.room('cpu', 'b'), 2)
  assert.deepEqual(taken(await all.take('cpu', 'b', GB)).placement.cores, [0, 1, 2])
})

test('without taskset replicas get threads, but no cores of their own', async () => {
  const { placement } = taken(await places({ pins: false }).take('cpu', 'a', GB))
  assert.equal(placement.cores, undefined)
  assert.equal(placement.threads, 3)
})

test('no more is placed than memory has room for, counting those that have not read their weights yet', async () => {
  const all = places({ available_bytes: () => 20 * GB })
  const first = taken(await all.take('cpu', 'a', 12 * GB))
  assert.match(
    refusal(await all.take('cpu', 'a', 12 * GB)),
    /A replica takes about 14,300 MB of memory, and 5,700 MB are free/,
  )
  first.isRunning = true
  taken(await all.take('cpu', 'a', 12 * GB))
})

test('a deployment has one replica a GPU; others share it as memory allows, the emptiest first', async () => {
  const all = places({ gpus: async () => [gpu(0), gpu(1)] })
  assert.deepEqual(
    (await all.classes()).map(({ name, places }) => [name, places]),
    [
      [h100, 2],
      ['cpu', 2],
    ],
  )
  const first = taken(await all.take(h100, 'a', 10 * GB))
  assert.deepEqual(
    [first.slot, first.placement.name, first.placement.env],
    ['GPU 0', 'GPU 0', { CUDA_VISIBLE_DEVICES: 'GPU-0' }],
  )
  // More than is left beside the first on both GPUs together.
  assert.equal(taken(await all.take(h100, 'b', 65 * GB)).placement.name, 'GPU 1')
  assert.match(refusal(await all.take(h100, 'a', 10 * GB)), /12,000 MB of memory of GPU 1, and 7,500 MB are free/)
  const shared = taken(await all.take(h100, 'a', GB))
  assert.deepEqual([shared.placement.name, shared.slot], ['GPU 1', 'GPU 1 (2)'])
  assert.match(refusal(await all.take(h100, 'a', 10 * GB)), /has a replica on each of the 2 GPUs/)
  assert.equal(await all.room(h100, 'a'), 2)
  const full = places({ gpus: async () => [gpu(0, 4 * GB)] })
  assert.match(refusal(await full.take(h100, 'a', 10 * GB)), /12,000 MB of memory of GPU 0, and 4,000 MB are free/)
})

test('classes of GPUs have names that can be written', () => {
  assert.equal(classOf({ name: 'NVIDIA H100 80GB HBM3' }), h100)
  const placed = gpuOf(parseGpu('0, GPU-8a, NVIDIA GeForce RTX 4090, 24564, 4564, 20000, [N/A]'))
  assert.equal(classOf(placed), 'nvidia-geforce-rtx-4090')
  assert.deepEqual([placed.free_bytes, placed.utilization], [20000 * 2 ** 20, null])
})

test('lists of cores are read and written as the kernel does', () => {
  assert.deepEqual(parseRanges('0-2,5,7-8'), [0, 1, 2, 5, 7, 8])
  assert.equal(ranges([0, 1, 2, 5, 7, 8]), '0-2,5,7-8')
})
