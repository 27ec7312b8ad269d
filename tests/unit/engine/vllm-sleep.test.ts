// Which bases sleep when trainings claim devices, and what becomes of requests meanwhile.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Asleep, type Claim, DeviceClaims, Gate, type Sleeper } from '../../../engine/vllm/sleep.ts'

const { signal } = new AbortController()
const times = { holds: [], grace_ms: 1000, wait_ms: 1000 }
const claimOf = (job: string, ...devices: string[]): Claim => ({ job, devices, end: false })

function sleeperOn(devices: string[] | null) {
  const told: (string | null)[] = []
  const follow = async (claim: Claim | null) => void told.push(claim?.job ?? null)
  const sleeper: Sleeper = { devices, device_bytes: 1e9, isStarting: false, follow }
  return { sleeper, told }
}

test('bases on claimed devices sleep, and those that may be there; a late older state changes nothing', async () => {
  const claims = new DeviceClaims()
  const [a, b, any] = [sleeperOn(['a']), sleeperOn(['b']), sleeperOn(null)]
  for (const { sleeper } of [a, b, any]) await claims.add(sleeper)
  await claims.apply({ version: 1, claims: [claimOf('job', 'a')], ...times })
  assert.deepEqual([a.told, b.told, any.told], [['job'], [null], ['job']])
  await claims.apply({ version: 3, claims: [], ...times })
  await claims.apply({ version: 2, claims: [claimOf('job', 'a')], ...times })
  assert.deepEqual(a.told, ['job', null])
})

test('a base that comes to a claimed device sleeps at once', async () => {
  const claims = new DeviceClaims()
  await claims.apply({ version: 1, claims: [claimOf('job', 'a')], ...times })
  const [a, b] = [sleeperOn(['a']), sleeperOn(['b'])]
  await claims.add(a.sleeper)
  await claims.add(b.sleeper)
  assert.deepEqual([a.told, b.told], [['job'], []])
})

test('what finds all devices claimed is tried again when claims change, and fails after its wait', async () => {
  const claims = new DeviceClaims()
  await claims.apply({ version: 1, claims: [claimOf('job', 'a')], holds: [], grace_ms: 0, wait_ms: 60_000 })
  const load = async () => {
    if (claims.claimOn(['a'])) throw new Asleep()
    return 'loaded'
  }
  const loading = claims.whenAwake(load)
  await claims.apply({ version: 2, claims: [], holds: [], grace_ms: 0, wait_ms: 60_000 })
  assert.equal(await loading, 'loaded')
  await claims.apply({ version: 3, claims: [claimOf('job', 'a')], holds: [], grace_ms: 0, wait_ms: 10 })
  await assert.rejects(claims.whenAwake(load), (error: Asleep) => {
    assert.deepEqual(
      [error.code, error.status, error.details],
      ['engine_unavailable', 503, { retry_after_seconds: 30 }],
    )
    assert.match(error.message, /sleeps while a training uses the memory of its GPU.*try again later/)
    return true
  })
  await assert.rejects(
    claims.whenAwake(() => Promise.reject(new Error('no such file'))),
    /no such file/,
  )
})

test('a closed gate lets nothing in, waits for what is inside, and cuts that off after the grace time', async () => {
  const gate = new Gate()
  gate.wait_ms = 60_000
  const inside = await gate.enter(signal)
  gate.close()
  const order: string[] = []
  const waiting = gate.enter(signal).then((pass) => {
    order.push('entered')
    return pass
  })
  const drained = gate.drain(60_000).then(() => order.push('drained'))
  inside.end()
  await drained
  assert.deepEqual(order, ['drained'])
  gate.open()
  const pass = await waiting
  gate.close()
  const cut = gate.drain(1)
  pass.cut.addEventListener('abort', () => pass.end())
  await cut
  assert.ok(pass.cut.reason instanceof Asleep)
  assert.match(pass.cut.reason.message, /needed the memory of the GPU before this answer was complete/)
})

test('a request that waits at a gate for too long gets 503, and one whose client leaves is gone', async () => {
  const gate = new Gate()
  gate.close()
  gate.wait_ms = 10
  await assert.rejects(gate.enter(signal), Asleep)
  gate.wait_ms = 60_000
  const client = new AbortController()
  const waiting = gate.enter(client.signal)
  client.abort()
  await assert.rejects(waiting, { name: 'AbortError' })
  gate.open()
  assert.equal(gate.isOpen, true)
})
