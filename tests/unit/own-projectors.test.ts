// An adapter that has its own projector: our engine alone serves it, here or on Ray, and each answer says with which.
import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { pino } from 'pino'
import { createApplications } from '../../server/features/scaling/ray/applications.ts'
import { createTargetFiles } from '../../server/features/scaling/ray/target-files.ts'
import type { EngineClient } from '../../server/features/serving/engine/client.ts'
import { createPools } from '../../server/features/serving/replicas/pools.ts'
import type { Target } from '../../server/features/serving/requests/replica.ts'
import { readUpstreams } from '../../server/features/serving/upstreams/settings.ts'
import { noVision } from '../support/tiny-vision.ts'

const folder = mkdtempSync(path.join(tmpdir(), 'tunery-own-projectors-'))
after(() => rmSync(folder, { recursive: true }))
for (const [part, file] of [
  ['base', 'hf/config.json'],
  ['tuned', 'adapter/adapter_config.json'],
] as const) {
  mkdirSync(path.dirname(path.join(folder, part, file)), { recursive: true })
  writeFileSync(path.join(folder, part, file), '{"r": 8}')
  writeFileSync(path.join(folder, part, 'weights.gguf'), part)
}
const projector = { path: path.join(folder, 'base/mmproj.gguf'), sha256: 'a'.repeat(64) }
const tuned = { path: path.join(folder, 'tuned/mmproj.gguf'), sha256: 'b'.repeat(64) }
const base = { id: 'far/eye', gguf: path.join(folder, 'base/weights.gguf'), projector }
const adapter = { id: 'mdl_1', gguf: path.join(folder, 'tuned/weights.gguf') }
const shared: Target = { base, adapter }
const apart: Target = { base, adapter: { ...adapter, projector: tuned } }

test('an upstream that loads adapters is not asked for one with its own projector, and the client is told why', () => {
  const poolsOf = (more: object) => {
    const upstreams = JSON.stringify([
      { model: base.id, url: 'http://127.0.0.1:1', kind: 'vllm', adapters: true, ...more },
    ])
    return createPools({
      engine: {} as EngineClient,
      upstreams: readUpstreams(upstreams, {}),
      waiting_max: 1,
      cacheSalt: () => '',
      artifacts: { hold: async () => ({ release: () => {} }) },
      log: pino({ enabled: false }),
    })
  }
  poolsOf({}).requireServable(shared)
  assert.throws(() => poolsOf({}).requireServable(apart), /projector of 'mdl_1'.*none with an adapter.*also_local/)
  poolsOf({ also_local: true }).requireServable(apart)
})

test('on Ray our engine gets both projectors, and vLLM refuses', { skip: noVision }, async () => {
  const files = createTargetFiles({
    models: { expected: async () => undefined },
    artifacts: { ensureLocal: async (file: string) => file },
    models_dir: folder,
  })
  const applications = createApplications({
    installation: 'x',
    files,
    secrets: { derive: (purpose: string) => purpose },
    engineCode: async () => '',
    vllmCode: async () => '',
    vllmConfig: {},
    serviceUrl: () => 'http://service',
    cores: 1,
    node: 'node',
    now: () => 0,
  })
  const at = async (target: Target) =>
    (await applications.whereIs({ id: 'd', instance_type: 'ray' }, target)).route.weights
  assert.match(await at(shared), /; projector=sha256:a{16}; adapter=mdl_1/)
  assert.match(await at(apart), /; projector=sha256:b{16}; adapter=mdl_1/)
  assert.deepEqual(
    [await files.find(apart, projector.sha256), await files.find(apart, tuned.sha256)],
    [projector.path, tuned.path],
  )
  for (const target of [shared, apart])
    await assert.rejects(files.forVllm(target), /'mdl_1' was trained on a base that reads/)
})
