// Devices of trainings: which the machine has, on how many a job runs, and who holds which.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import pino from 'pino'
import type { ResolvedConfig } from '../../contract/fine-tuning.ts'
import type { NvidiaGpu } from '../../lib/nvidia-gpus.ts'
import { readConfig } from '../../server/config.ts'
import { Hub } from '../../server/features/hub/service.ts'
import { createDevices } from '../../server/features/jobs/devices/index.ts'
import { type Device, readDevices } from '../../server/features/jobs/devices/list.ts'
import { needOf } from '../../server/features/jobs/devices/need.ts'
import type { Serving } from '../../server/features/jobs/devices/pausing.ts'
import { type Need, planFor } from '../../server/features/jobs/devices/plan.ts'
import { DevicePool, type Place } from '../../server/features/jobs/devices/pool.ts'

const gpu = (index: number, total_mb: number | null, free_mb = total_mb): NvidiaGpu => ({
  index,
  uuid: `GPU-${index}a`,
  name: 'H100',
  total_bytes: total_mb && total_mb * 1e6,
  used_bytes: null,
  free_bytes: free_mb && free_mb * 1e6,
  utilization: null,
})
const two = [gpu(0, 80_000, 50_000), gpu(1, 80_000)]
const devicesOf = async (setting: string, all: NvidiaGpu[] | undefined, visible?: string) => {
  const { training_devices: names } = readConfig({ TUNERY_TRAINING_DEVICES: setting })
  const options = { names, gpus: true, cuda_visible_devices: visible, read: async () => all, count: () => 2 }
  const { devices, missing } = await readDevices(options)
  return { shown: devices.map(({ name, visible, free_mb }) => [name, visible, free_mb]), missing }
}

test('the devices are the GPUs that CUDA_VISIBLE_DEVICES leaves, those of the setting, or the cores', async () => {
  const first = ['GPU 0', 'GPU-0a', 50_000]
  const second = ['GPU 1', 'GPU-1a', 80_000]
  assert.deepEqual((await devicesOf('', two)).shown, [first, second])
  assert.deepEqual((await devicesOf('', two, '1')).shown, [second])
  assert.deepEqual((await devicesOf('', two, 'GPU-1a,GPU-0a')).shown, [second, first])
  assert.deepEqual((await devicesOf('', two, '7,0')).shown, [['cpu', undefined, null]], 'as CUDA: none behind it')
  assert.deepEqual((await devicesOf('', two, '')).shown, [['cpu', undefined, null]])
  assert.deepEqual((await devicesOf('', [])).shown, [['cpu', undefined, null]])
  assert.deepEqual(await devicesOf('1,0=40000,5', two), {
    shown: [second, ['GPU 0', 'GPU-0a', 40_000]],
    missing: ['5'],
  })
  assert.deepEqual((await devicesOf('0,GPU-0a,00', two)).shown, [first], 'a GPU by several of its names')
  assert.deepEqual((await devicesOf('cpu0=4000,cpu1', two)).shown, [
    ['cpu0', '', 4000],
    ['cpu1', '', null],
  ])
  const silent = [
    ['GPU 0', '0', null],
    ['GPU 1', '1', null],
  ]
  assert.deepEqual((await devicesOf('', undefined)).shown, silent, 'the driver does not answer')
})

test('a setting that names no device, one twice, or two kinds is refused', () => {
  for (const [value, message] of [
    ['gpu0', /'gpu0' is not a GPU's number or UUID, or cpu0/],
    ['0=x', /'0=x' is not a GPU's number/],
    ['cpu0=1', /'cpu0=1': the memory behind = is in MB, from 100 to 9999999/],
    ['0,0=4000', /names a device twice/],
    ['0,cpu0', /names GPUs and places on the cores/],
  ] as const)
    assert.throws(() => readConfig({ TUNERY_TRAINING_DEVICES: value }), message)
})

const device = (name: string, memory_mb: number | null, free_mb = memory_mb): Device => ({
  name,
  visible: name,
  on: 'gpu',
  memory_mb,
  free_mb,
})
const need = (
  alone_mb: number | null,
  shared: Need['shared'] = (devices) => 2000 + (alone_mb ?? 0) / devices,
): Need => ({ alone_mb, least_mb: alone_mb && alone_mb - 5000, shared })
const four = ['a', 'b', 'c', 'd'].map((name) => device(name, 40_000))

test('a training runs on one device, else on as few as can share it, and is refused where all are too small', () => {
  const runs = (alone_mb: number | null, all = four, processes = 1) => {
    const plan = planFor(need(alone_mb), all, processes)
    return 'refused' in plan ? plan.refused : [plan.devices, plan.sharded]
  }
  assert.deepEqual(runs(38_000), [1, false])
  assert.deepEqual(runs(null), [1, false], 'nothing is known of it')
  assert.deepEqual(runs(90_000, [device('a', null)]), [1, false], 'nothing is known of the device')
  assert.deepEqual(runs(60_000), [2, true])
  assert.deepEqual(runs(100_000), [3, true])
  assert.deepEqual(runs(30_000, four, 3), [3, false], 'each of several processes has all of it')
  assert.deepEqual(runs(30_000, [device('a', 40_000), device('b', 10_000)], 2), [1, false])
  assert.match(
    String(runs(200_000)),
    /at least 195.0 GB of memory, and the largest of 4 devices has 38.0 GB for it. Shared by all 4, it would take 52.0/,
  )
  const unshared = (mb: number) => planFor(need(mb, 'Several devices cannot share a training by qlora.'), four, 1)
  assert.match(JSON.stringify(unshared(60_000)), /has 38.0 GB for it. Several devices cannot share a training by qlora/)
  assert.deepEqual(
    unshared(40_000),
    { devices: 1, needed_mb: 35_000, available_mb: 38_000, sharded: false },
    'its rows may be short',
  )
})

test('of a base of 7 billion weights three GPUs with 17 GB share the weights, and one with 40 GB has them all', () => {
  const hub = new Hub('/none', () => ({}) as never, {})
  const value = <T>(value: T) => ({ value, source: 'default' as const })
  const resolve = (method: 'lora' | 'qlora') =>
    ({
      method: value(method),
      method_options: { objective: value('sft') },
      lora_config: { r: value(16), experts: value(false) },
      training_config: { max_length: value(1024) },
    }) as unknown as ResolvedConfig
  const runs = (method: 'lora' | 'qlora', memory_mb: number, count: number) => {
    const devices = Array.from({ length: count }, (_, index) => device(String(index), memory_mb))
    const plan = planFor(needOf(hub, 'Qwen/Qwen2.5-7B-Instruct', resolve(method), 'gpu'), devices, 1)
    return 'refused' in plan ? plan.refused : [plan.devices, plan.sharded]
  }
  assert.deepEqual(runs('lora', 40_000, 4), [1, false])
  assert.deepEqual(runs('lora', 17_000, 4), [3, true])
  assert.deepEqual(runs('lora', 24_000, 1), [1, false], 'with short rows')
  assert.match(
    String(runs('lora', 12_000, 2)),
    /at least 1\d\.\d GB.*Shared by all 2, it would take 1\d\.\d GB of each/,
  )
  assert.match(String(runs('qlora', 4000, 2)), /Several devices cannot share a training by qlora/)
})

test('a job that learns from graders needs memory for its answers, not for the longest rows', () => {
  const hub = new Hub('/none', () => ({}) as never, {})
  const value = <T>(value: T) => ({ value, source: 'default' as const })
  const need = (group_size: number, max_tokens: number, batch_size = 8) => {
    const options = { objective: value('reinforcement'), group_size: value(group_size), max_tokens: value(max_tokens) }
    const config = {
      method: value('lora'),
      method_options: options,
      lora_config: { r: value(16), experts: value(false) },
      training_config: { max_length: value(32_000), batch_size: value(batch_size) },
    } as unknown as ResolvedConfig
    return needOf(hub, 'Qwen/Qwen2.5-7B-Instruct', config, 'cpu')
  }
  const mb = (...sizes: Parameters<typeof need>) => need(...sizes).alone_mb!
  assert.ok(mb(8, 16, 1) < mb(8, 16, 8), 'more prompts, more answers')
  assert.ok(mb(8, 16, 8) < mb(8, 256, 8), 'longer answers')
  assert.equal(mb(8, 256, 8), mb(8, 256, 64), 'a pass has so many answers, whatever the batch')
  assert.ok(mb(2, 2048, 1) < mb(2, 4096, 1), 'an answer is not divided')
  assert.ok(need(8, 256).least_mb! < mb(8, 256))
  assert.equal(need(8, 256).shared, 'Several devices cannot share a training on scores of graders.')
})

function poolOf(devices: Device[], { serving, mayPause = true }: { serving?: Serving; mayPause?: boolean } = {}) {
  const released: string[][] = []
  const clock = { now: 0 }
  const onReleased = (ids: string[]) => void released.push(ids)
  const read = async () => ({ devices, missing: [] })
  const now = () => clock.now
  const pool = new DevicePool({ read, processes: 1, serving, mayPause, onReleased, now })
  const { signal } = new AbortController()
  const take = async (job_id: string, mb: number | null, account_id = 'acc', left_mb = 0) =>
    pool.take({ job_id, account_id, need: need(mb), left_mb, signal })
  const hold = async (...request: Parameters<typeof take>): Promise<Place> => {
    const place = await take(...request)
    assert.ok('devices' in place, JSON.stringify(place))
    return place
  }
  const waits = async (...request: Parameters<typeof take>) => {
    const answer = await take(...request)
    return 'waits' in answer ? answer.waits : JSON.stringify(answer)
  }
  return { pool, released, clock, hold, waits }
}

test('a device has one training; who finds none waits, and is told when one comes back', async () => {
  const { pool, released, hold, waits } = poolOf([device('a', 40_000), device('b', 40_000)])
  const [one, two] = await Promise.all([hold('1', 10_000), hold('2', 10_000)])
  assert.deepEqual([one.devices, two.devices, two.env], [['a'], ['b'], { CUDA_VISIBLE_DEVICES: 'b' }])
  assert.equal(await waits('3', 10_000), 'The job waits: other jobs train on all devices.')
  assert.deepEqual(
    (await pool.list()).map(({ job_id }) => job_id),
    ['1', '2'],
  )
  two.release()
  two.release()
  assert.deepEqual(released, [['3']], 'once')
  assert.deepEqual((await hold('3', 10_000)).devices, ['b'])
  one.release()
  assert.deepEqual(
    (await pool.list()).map(({ job_id }) => job_id),
    [null, '3'],
  )
})

test('a training goes to the smallest device with enough free memory, and of these to the least used', async () => {
  const all = [device('large', 80_000), device('served', 40_000, 12_000), device('small', 40_000, 30_000)]
  const { hold, waits } = poolOf(all)
  assert.deepEqual((await hold('1', 10_000)).devices, ['small'])
  assert.deepEqual((await hold('2', 20_000)).devices, ['large'])
  assert.match(
    await waits('3', 20_000),
    /it takes about 20.0 GB of memory, and of the devices without a training served has most free, 12.0 GB/,
  )
  assert.deepEqual((await hold('4', 11_000)).devices, ['served'], 'what fits passes it')
})

test('a job that needs several devices gets them before jobs that came later, and stops none that runs', async () => {
  const { pool, clock, hold, waits } = poolOf(four)
  const running = [await hold('1', 10_000), await hold('2', 10_000)]
  assert.match(await waits('wide', 120_000), /needs 4 devices at once, and 2 of 4 have no training/)
  assert.equal(pool.isWanted('acc'), false)
  assert.equal(pool.isWanted('another'), true)
  assert.match(await waits('3', 10_000), /kept for a job that needs several at once/)
  for (const place of running) place.release()
  assert.match(await waits('3', 10_000), /kept for a job/)
  const wide = await hold('wide', 120_000)
  assert.deepEqual([wide.devices.length, wide.processes, wide.sharded], [4, 4, true])
  assert.equal(wide.env.CUDA_VISIBLE_DEVICES, 'a,b,c,d')
  wide.release()
  // It was cancelled while it waited: it asks no more, and keeps nothing.
  const other = await hold('4', 10_000)
  assert.match(await waits('gone', 120_000), /needs 4/)
  other.release()
  assert.match(await waits('5', 10_000), /kept for a job/)
  clock.now += 100_000
  await hold('5', 10_000)
})

/** Serving on the device `a` of 80 GB: awake it takes 50 GB of it, asleep `kept_mb`, ended nothing. */
function servedOn(a: Device, kept_mb: number, others_mb = 0) {
  const calls: string[] = []
  const starting: { devices: string[]; bytes: number }[] = []
  const take = (mb: number) => {
    a.free_mb = 80_000 - others_mb - mb
  }
  let isAwake = true
  take(50_000)
  const serving: Serving = {
    awake: async () => (isAwake ? [{ id: 'base', devices: ['a'], bytes: 50e9 }] : []),
    async claim(job_id, devices, end) {
      calls.push(`${job_id} claims ${devices}${end ? ' whole' : ''}`)
      isAwake = false
      take(end ? 0 : kept_mb)
    },
    starting: async () => [...starting],
    hold: (job_id, devices, bytes) => void calls.push(`${job_id} holds ${bytes / 1e6} of ${devices}`),
    release(job_id) {
      calls.push(`${job_id} releases`)
      isAwake = true
      take(50_000)
    },
  }
  return { serving, calls, starting }
}

test('a training for which too little is free puts serving to sleep, and wakes it as it ends', async () => {
  const a = device('a', 80_000)
  const { serving, calls } = servedOn(a, 2000)
  const { pool, clock, hold, waits } = poolOf([a], { serving })
  const small = await hold('small', 20_000)
  assert.equal(small.pauses_serving, false, 'what is free is enough')
  small.release()
  assert.deepEqual(calls.splice(0), ['small holds 30000 of a', 'small releases'])
  const plan = (await pool.plan(need(60_000))) as Exclude<Awaited<ReturnType<typeof pool.plan>>, { refused: string }>
  assert.equal(await pool.wouldPause(plan), true)
  const [large, other] = await Promise.all([hold('large', 60_000), waits('other', 10_000)])
  assert.match(other, /another job trains on a/, 'others see its device taken while serving falls asleep')
  assert.deepEqual([large.pauses_serving, large.memory_mb], [true, 78_000])
  const claimed = ['large claims a', 'large holds 78000 of a']
  assert.deepEqual(calls, claimed)
  large.release()
  large.release()
  assert.deepEqual(calls, [...claimed, 'large releases'])
  assert.match(await waits('next', 60_000), /answers for a minute before it sleeps again/)
  clock.now += 61_000
  assert.equal((await hold('next', 60_000)).pauses_serving, true)
})

test('serving does not sleep where the operator does not allow it, or others have the memory', async () => {
  const a = device('a', 80_000)
  const { serving, calls } = servedOn(a, 2000)
  const { pool, waits } = poolOf([a], { serving, mayPause: false })
  assert.match(await waits('1', 60_000), /a has most free, 30.0 GB.*TUNERY_TRAINING_MAY_PAUSE_SERVING/)
  const plan = { devices: 1, needed_mb: 60_000, available_mb: 76_000, sharded: false }
  assert.equal(await pool.wouldPause(plan), false)
  const b = device('a', 80_000)
  const crowded = servedOn(b, 2000, 25_000)
  const { waits: waitsThere } = poolOf([b], { serving: crowded.serving })
  assert.match(await waitsThere('1', 60_000), /What is served there takes the rest\.$/)
  assert.deepEqual([calls, crowded.calls], [[], []])
})

test('a vLLM that keeps too much memory asleep is ended', async () => {
  const a = device('a', 80_000)
  const { serving, calls } = servedOn(a, 30_000)
  const { hold } = poolOf([a], { serving })
  assert.equal((await hold('1', 60_000)).memory_mb, 80_000)
  assert.deepEqual(calls, ['1 claims a', '1 claims a whole', '1 holds 80000 of a'])
})

test('serving that cannot be put to sleep is woken, and the job waits', async () => {
  const a = device('a', 80_000)
  const { serving, calls } = servedOn(a, 2000)
  const claim = () => Promise.reject(new Error('the engine has ended'))
  const { pool, waits } = poolOf([a], { serving: { ...serving, claim } })
  assert.match(await waits('1', 60_000), /could not be put to sleep \(the engine has ended\)/)
  assert.deepEqual(calls, ['1 releases'])
  assert.equal((await pool.list())[0]!.job_id, null, 'its device is free again')
})

test('a training leaves memory to a vLLM that is to come, but not of what it needs itself', async () => {
  const { hold } = poolOf([device('a', 80_000)])
  const memory = async (mb: number, left_mb: number) => {
    const place = await hold('1', mb, 'acc', left_mb)
    place.release()
    return place.memory_mb
  }
  assert.equal(await memory(20_000, 15_000), 65_000)
  assert.equal(await memory(75_000, 15_000), 75_000)
})

test('what a vLLM that starts will take is not free, and it is told what a training may take', async () => {
  const a = device('a', 80_000)
  const { serving, calls, starting } = servedOn(a, 2000)
  const { hold, waits } = poolOf([a], { serving, mayPause: false })
  starting.push({ devices: ['a'], bytes: 15e9 })
  assert.match(await waits('1', 20_000), /a has most free, 15.0 GB/)
  starting.pop()
  await hold('1', 20_000, 'acc', 8000)
  assert.deepEqual(calls, ['1 holds 22000 of a'])
})

test('names of devices that the machine lacks are said as the service starts', async () => {
  const lines: { missing?: string[]; msg: string }[] = []
  const log = pino({ level: 'warn' }, { write: (line) => void lines.push(JSON.parse(line)) })
  const config = readConfig({ TUNERY_TRAINING_DEVICES: '701,GPU-none', TUNERY_GPU: 'none' })
  const hub = new Hub('/none', () => ({}) as never, {})
  await createDevices({ config, hub, hasOthers: async () => false, serving: undefined, onReleased: () => {}, log })
  const [line] = lines
  assert.deepEqual([lines.length, line?.missing], [1, ['701', 'GPU-none']])
  assert.match(line!.msg, /TUNERY_TRAINING_DEVICES names devices that this machine does not have: 701, GPU-none\./)
})
