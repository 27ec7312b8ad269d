import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { ResolvedConfig } from '../../contract/fine-tuning.ts'
import {
  entriesOf,
  type GroupName,
  hyperparameters,
  requestShape,
  resolvedShape,
} from '../../contract/hyperparameters.ts'
import { JobConfig } from '../../contract/job-config.ts'
import { root } from '../../lib/root.ts'
import { pythonClass, pythonModule, pythonModuleFile } from '../../scripts/docs/python-module.ts'
import { type BaseInfo, resolveConfig } from '../../server/features/jobs/defaults.ts'
import { specGroup } from '../../server/features/jobs/spec.ts'
import { readResolvedConfig } from '../../server/features/models/training.ts'

const groups = Object.keys(hyperparameters) as GroupName[]
const entries = groups.flatMap((group) =>
  entriesOf(group).map(([name, entry]) => ({ group, name, entry, field: `${group}.${name}` })),
)
const info = { base: { id: 'a/base', parameters: 135e6, context_length: 1024 } }
const resolved = resolveConfig({}, info, ['q_proj'], null)

test('the trainer’s hyperparameters are those of the table; `npm run docs` writes them', () => {
  assert.equal(readFileSync(path.join(root, pythonModuleFile), 'utf8'), pythonModule())
})

test('every hyperparameter is in request, resolved config, spec.json, trainer and reference page', () => {
  const page = readFileSync(path.join(root, 'docs/reference/job-config.md'), 'utf8')
  for (const { group, name, entry, field } of entries) {
    const spec_name = entry.spec_name ?? name
    assert.equal(name in JobConfig.shape[group].unwrap().shape, entry.request !== undefined, field)
    assert.equal(page.includes(`| \`config.${field}\` |`), entry.request !== undefined, field)
    assert.equal(name in resolved[group]!, entry.resolved !== undefined, field)
    assert.ok(specGroup(group, resolved[group]!)[spec_name] !== undefined, field)
    assert.match(pythonModule(), new RegExp(`^    ${spec_name}: `, 'm'), field)
  }
  assert.deepEqual(ResolvedConfig.parse(resolved), resolved)
})

test('every hyperparameter has either a constant default of its type, or a computed one', () => {
  for (const { entry, field } of entries) {
    assert.equal('default' in entry, entry.computed === undefined, field)
    if ('default' in entry) entry.resolved?.parse(entry.default)
  }
})

test('an entry of a group makes its field everywhere', () => {
  const { epochs } = hyperparameters.training_config
  const group = { momentum: { ...epochs, description: 'Momentum.', default: 3, spec_name: 'beta' } }
  const request = requestShape(group).momentum
  assert.deepEqual(request.meta(), { description: 'Momentum.', default: 3 })
  assert.deepEqual([request.safeParse(50).success, request.safeParse(51).success], [true, false])
  const value = { value: 60, source: 'default' as const }
  assert.deepEqual(resolvedShape(group).momentum.parse(value), value)
  assert.match(pythonClass('Group', 'Of a test.', Object.entries(group)), / {4}# Momentum\.\n {4}beta: int = 3\n$/)
})

test('spec.json has the trainer’s names, requested values and constants', () => {
  const { training_config } = resolveConfig({ training_config: { epochs: 7 } }, info, ['q_proj'], null)
  const expected = {
    epochs: 7,
    batch_size: 4,
    learning_rate: 1e-3,
    warmup_ratio: 0.05,
    scheduler: 'cosine',
    seed: 42,
    max_length: 1024,
    weight_decay: 0,
    max_grad_norm: 1,
  }
  assert.partialDeepStrictEqual(specGroup('training_config', training_config), expected)
  const evaluation = { split: 0, dataset: null, every_steps: null, patience: null, answer_tokens: 64, keep: 0 }
  assert.partialDeepStrictEqual(specGroup('evaluation_config', resolved.evaluation_config), evaluation)
})

test('a job that is older than a hyperparameter has its constant default', () => {
  assert.equal(JSON.stringify(readResolvedConfig(JSON.stringify(resolved))), JSON.stringify(resolved))
  const { dropout: _, ...older } = resolved.lora_config!
  assert.deepEqual(readResolvedConfig(JSON.stringify({ ...resolved, lora_config: older })), resolved)
  const full = resolveConfig({ method: 'full' }, info, undefined, null)
  assert.deepEqual(readResolvedConfig(JSON.stringify(full)), full)
})

test('target_modules names layers, all of them, and the projector', () => {
  const layers = ['down_proj', 'q_proj']
  const resolve = (config: JobConfig, adapter?: BaseInfo['adapter'], problem: string | null = null) => {
    const { lora_config, projector } = resolveConfig(config, { ...info, ...(adapter && { adapter }) }, layers, problem)
    return [lora_config?.target_modules.value, projector!.value, projector!.source]
  }
  const naming = (...target_modules: string[]): JobConfig => ({ lora_config: { target_modules } })
  assert.deepEqual(resolve({}), [layers, false, 'default'])
  assert.deepEqual(resolve(naming('all-linear')), [layers, false, 'default'])
  assert.deepEqual(resolve(naming('q_proj', 'projector')), [['q_proj'], true, 'request'])
  const whole = { method: 'full', ...naming('projector', 'all-linear') } as const
  assert.deepEqual(resolve(whole), [undefined, true, 'request'])
  assert.throws(() => resolve(naming('projector')), /names the projector alone/)
  assert.throws(() => resolve(naming('q_proj', 'projector'), undefined, 'a/base reads text only'), /reads text only/)
  assert.throws(() => resolve({ method: 'full', ...naming('projector', 'q_proj') }), /has no adapter/)
  assert.throws(() => resolve({ method: 'full', lora_config: { ...whole.lora_config, r: 8 } }), /has no adapter/)

  const projector = { path: '/mmproj.gguf', sha256: '' }
  const before = {
    model_id: 'mdl_1',
    folder: '',
    gguf: '',
    r: 8,
    alpha: 16,
    target_modules: ['q_proj'],
    experts: false,
    projector,
  }
  assert.deepEqual(
    resolve({}, before),
    [['q_proj'], true, 'model'],
    'what is continued keeps its projector in training',
  )
  assert.deepEqual(resolve(naming('q_proj', 'projector'), before)[1], true)
  assert.throws(() => resolve(naming('q_proj'), before), /mdl_1 has \["q_proj","projector"\]/)
  assert.throws(() => resolve(naming('q_proj', 'projector'), { ...before, projector: null }), /mdl_1 has \["q_proj"\]/)
})

test('experts are trained where their adapters fit into a tenth of the memory, or as the job says', () => {
  const mixture = { expert_weights: 1e6, memory_bytes: 16 * 16e6 * 10 }
  const resolve = (lora_config: JobConfig['lora_config'], known: typeof mixture | null | undefined = mixture) =>
    resolveConfig({ ...(lora_config && { lora_config }) }, info, ['q_proj'], null, known).lora_config!.experts
  assert.deepEqual(resolve(undefined), { value: true, source: 'default' })
  assert.deepEqual(resolve({ r: 32 }), { value: false, source: 'default' }, 'twice the rank takes twice the memory')
  assert.deepEqual(resolve({ dropout: 0.1 }), { value: false, source: 'default' })
  assert.deepEqual(resolve({ r: 32, experts: true }), { value: true, source: 'request' })
  assert.deepEqual(resolve({ experts: false }), { value: false, source: 'request' })
  assert.deepEqual(resolve(undefined, null), { value: false, source: 'default' })
  assert.throws(() => resolve({ experts: true }, null), /a\/base has no experts that an adapter can change/)
  assert.throws(() => resolve({ experts: true, dropout: 0.1 }), /needs a dropout of 0/)
  // Until its weights are here, nobody knows what a base has.
  const pending = resolveConfig({ lora_config: { experts: true } }, info, undefined, null)
  assert.deepEqual(pending.lora_config!.experts, { value: true, source: 'request' })
  const adapter = { model_id: 'mdl_1', folder: '', gguf: '', r: 8, alpha: 16, target_modules: ['q_proj'] }
  const before = { ...adapter, experts: true, projector: null }
  const continued = resolveConfig({}, { ...info, adapter: before }, ['q_proj'], null, mixture)
  assert.deepEqual(continued.lora_config!.experts, { value: true, source: 'model' })
  const without = { lora_config: { experts: false } }
  assert.throws(() => resolveConfig(without, { ...info, adapter: before }, ['q_proj'], null, mixture), /has true/)
  const dropping = { lora_config: { dropout: 0.1 } }
  assert.throws(
    () => resolveConfig(dropping, { ...info, adapter: before }, ['q_proj'], null, mixture),
    /dropout': mdl_1 changes experts, which need a dropout of 0, and this job has 0.1/,
  )
})
