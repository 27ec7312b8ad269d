// The catalogue of base models: what each needs, which this machine has room for, and which is recommended.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import path from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import type { Method } from '../../contract/common.ts'
import { type Model, modelSizes, modelTasks } from '../../contract/hub.ts'
import { root } from '../../lib/root.ts'
import catalogue from '../../server/features/hub/catalogue.json' with { type: 'json' }
import { readFamilies } from '../../server/features/hub/families.ts'
import { filterModels } from '../../server/features/hub/filter.ts'
import { type Machine, type Shape, Sizes, shapeOf, trainingBytes, withSizes } from '../../server/features/hub/memory.ts'
import { type Candidate, machineClasses, recommend } from '../../server/features/hub/recommend.ts'
import { Hub } from '../../server/features/hub/service.ts'
import { full } from '../support/full.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

const free = { currency: '', training_per_million_tokens: 0, input_per_million_tokens: 0, output_per_million_tokens: 0 }
const machine = (memory_bytes: number): Machine => ({ device: 'cpu', bf16: true, cores: 2, memory_bytes })
const hub = (memory_bytes: number, families = new Map<string, Record<string, string>>()) =>
  new Hub(tinyModelsDir(), () => free, { machine: machine(memory_bytes), families })
const ids = (models: Model[]) => models.map(({ id }) => id)

interface Entry {
  id: string
  family: string
  tasks: string[]
  parameters: number
  active_parameters?: number
  shape?: Shape
}
const entries: Entry[] = catalogue.models

test('the weights that a shape counts are those of the base', () => {
  for (const { id, parameters, active_parameters, shape } of entries) {
    // Experts, shared keys, gates of attention and layers of a state are not counted from these sizes.
    if (!shape || active_parameters || /gemma-(3n|4)|Qwen3\.[58]|LFM|Nemotron|Muse/.test(id)) continue
    const { layers, hidden_size, mlp_size, heads, kv_heads, head_size, vocabulary, vision_weights = 0 } = shape
    const attention = hidden_size * head_size * (2 * heads + 2 * kv_heads)
    const text = layers * (attention + 3 * hidden_size * mlp_size) + vocabulary * hidden_size
    const counted = [text, text + vocabulary * hidden_size].map((weights) => weights + vision_weights)
    const off = Math.min(...counted.map((weights) => Math.abs(weights / parameters - 1)))
    assert.ok(off < 0.01, `${id}: ${counted.join(' or ')} for ${parameters}`)
  }
})

test('tasks, sizes and licenses of all entries are known, and mixtures say what computes a token', () => {
  const models = hub(64e9).list()
  assert.deepEqual([...new Set(models.flatMap(({ tasks }) => tasks))].sort(), [...modelTasks].sort())
  for (const size of modelSizes.slice(0, 4)) assert.ok(filterModels(models, { size }).length > 2, size)
  for (const { id, license, license_url } of models)
    if (!['apache-2.0', 'mit', 'unknown'].includes(license)) assert.match(license_url ?? id, /^https:/)
  const mixture = models.find(({ id }) => id === 'Qwen/Qwen3-30B-A3B-Instruct-2507')!
  assert.deepEqual([mixture.size, mixture.params_billions, mixture.active_params_billions], ['30b', 30.53, 3.353])
})

test('each entry of today has the row of its family in the table of families', () => {
  const families = readFamilies()
  const others = ['bert', 'idefics3', 'qwen2_5_vl']
  const untried = entries.filter(({ family }) => !families.has(family) && !others.includes(family))
  assert.deepEqual(untried, [])
  // Those of other tests, with a tower of their own.
  const proven = [...others, 'gemma3']
  const blind = entries.filter(
    ({ family, tasks }) =>
      tasks.includes('pictures') && !proven.includes(family) && families.get(family)!.pictures !== 'yes',
  )
  assert.deepEqual(blind, [])
})

test('what fits is computed from the machine, by method and to serve', () => {
  const needs = (memory_bytes: number) => hub(memory_bytes).get('Qwen/Qwen2.5-7B-Instruct').needs
  const uses = ['lora', 'qlora', 'full', 'serve'] as const
  const fitting = (memory_bytes: number) => uses.filter((use) => needs(memory_bytes)[use]!.fits)
  assert.deepEqual(fitting(4e9), [])
  assert.deepEqual(fitting(16e9), ['serve'])
  assert.deepEqual(fitting(24e9), ['qlora', 'serve'])
  assert.deepEqual(fitting(30e9), ['lora', 'qlora', 'serve'])
  assert.deepEqual(fitting(200e9), [...uses])
  const { serve, disk } = needs(24e9)
  assert.equal(serve!.mb, Math.round((2 * 7_615_616_512 + 48 * 2 ** 20 + 8192 * 28 * 4 * 256 * 2) / 1e6))
  assert.equal(disk!.mb, 2 * 15_231)
  const quantized = hub(24e9).get('openai/gpt-oss-20b').needs.disk!
  assert.equal(quantized.mb, Math.round(2 * 13_761 + (2 * 20_914_757_184) / 1e6), 'with the whole weights')
  const { needs: embedding } = hub(24e9).get('sentence-transformers/all-MiniLM-L6-v2')
  assert.deepEqual([embedding.lora, embedding.full], [null, null])
  const local = hub(24e9).get(tiny)
  assert.ok(local.needs.lora!.fits && local.needs.lora!.mb < 2000, 'sizes of an added base are read from its files')
  assert.equal(local.needs.disk, null)
})

test('models are searched, filtered and sorted', () => {
  const models = hub(24e9).list()
  assert.deepEqual(ids(filterModels(models, { q: 'qwen3_MOE' })), [
    'Qwen/Qwen3-30B-A3B-Instruct-2507',
    'Qwen/Qwen3-Coder-30B-A3B-Instruct',
  ])
  const code = filterModels(models, { task: 'code', fits: 'lora', sort: 'memory' })
  assert.ok(code.length > 2 && code.every(({ tasks, needs }) => tasks.includes('code') && needs.lora?.fits))
  assert.deepEqual(
    code.map(({ needs }) => needs.lora!.mb),
    code.map(({ needs }) => needs.lora!.mb).toSorted((a, b) => a - b),
  )
  assert.equal(filterModels(models, { sort: 'memory' }).at(-1)?.needs.lora, null, 'what cannot be trained comes last')
})

test('the base recommended for a machine is the largest that trains there within an hour, and says why', () => {
  const { recommended, classes } = hub(24e9).machine()
  assert.equal(recommended?.model_id, 'Qwen/Qwen3-0.6B')
  assert.match(recommended.why, /^It takes \d\.\d GB of 24\.0 GB to train by lora, and about 36 min for 1,000 examples/)
  assert.equal(hub(1e9).machine().recommended, null)
  const ofGpus = classes.filter(({ device }) => device === 'gpu')
  for (const { name, memory_mb, recommended } of classes)
    assert.ok(recommended && recommended.memory_mb <= memory_mb, name)
  assert.ok(classes[0]!.recommended!.memory_mb <= 5000, 'a laptop runs its system and a browser too')
  assert.equal(ofGpus[0]?.recommended?.seconds, null, 'no rate of that GPU is measured')
  const tried = hub(24e9, new Map([['qwen3', { lora: 'It cannot be trained.' }]])).machine().recommended
  assert.match(tried!.model_id, /Qwen2\.5/, 'a family that failed is not recommended')
  const large: Candidate = {
    id: 'test/large',
    family: 'phi3',
    parameters: 5e8,
    active_parameters: 5e8,
    shape: entries[4]!.shape!,
    tested: { lora: 'yes' },
  }
  assert.equal(recommend([large], machineClasses[5]!)?.model_id, 'test/large')
  assert.equal(recommend([{ ...large, tested: undefined }], machineClasses[5]!), null)
})

const program = `
import json, sys
from dataclasses import replace
from types import SimpleNamespace
from trainer.runtime.process import importing, leave_out_quantized_layers
leave_out_quantized_layers()
with importing():
    import torch
    from trainer.run import memory
# Whether the kernels were compiled here.
memory.kernels.available = lambda device, dtype: device.type == "cpu"
results = []
for base in json.load(sys.stdin):
    shape = base["shape"]
    vision = shape.get("vision_weights", 0)
    qkv = shape.get("qkv_size", shape["head_size"] * (shape["heads"] + 2 * shape["kv_heads"]))
    widths = [shape[name] for name in ("layers", "hidden_size", "mlp_size")]
    sizes = memory.ModelShape(base["parameters"] - vision, *widths, qkv, shape["vocabulary"], base["name"], vision)
    sizes = replace(sizes, attended_size=shape["heads"] * shape["head_size"])
    sizes = replace(sizes, layer_embeddings=shape.get("layer_embeddings", 0), head_weights=shape.get("head_weights", 0))
    if experts := shape.get("experts"):
        counts = {"expert_weights": experts["weights"], "expert_size": experts["size"]}
        sizes = replace(sizes, **counts, experts_chosen=experts["chosen"], linear_lora=experts["linear_lora"])
    spec = SimpleNamespace(method=base["method"], lora=SimpleNamespace(r=16, experts=False), projector=False)
    device = torch.device("cuda" if base["device"] == "gpu" else "cpu")
    results.append(memory.predicted_bytes(sizes, spec, 2, 2048, 512, device, ranks=base["devices"]))
print(json.dumps(results))
`
test('the memory of a training is what the trainer predicts', async () => {
  // The classes of their layers in transformers, without "DecoderLayer".
  const names: Record<string, string> = {
    llama: 'Llama',
    mistral: 'Mistral',
    qwen2: 'Qwen2',
    qwen3: 'Qwen3',
    smollm3: 'SmolLM3',
    gemma3_text: 'Gemma3',
    olmo3: 'Olmo3',
    phi3: 'Phi3',
    lfm2: 'Lfm2',
    idefics3: 'Llama',
  }
  const asked = entries.flatMap(({ id, family, parameters, active_parameters = parameters, shape }) =>
    shape && !family.endsWith('_vl')
      ? (['cpu', 'gpu'] as const).flatMap((device) =>
          (
            [
              ['lora', 1],
              ['lora', 4],
              ['qlora', 1],
              ['full', 1],
            ] as const
          ).map(([method, devices]) => ({
            id,
            device,
            method,
            devices,
            family,
            parameters,
            active_parameters,
            shape,
            name: names[family] ?? '',
          })),
        )
      : [],
  )
  const run = promisify(execFile)(path.join(root, '.local/python/bin/python'), ['-c', program], { cwd: root })
  run.child.stdin!.end(JSON.stringify(asked))
  const predicted: number[] = JSON.parse((await run).stdout)
  for (const [index, { id, device, method, devices, ...base }] of asked.entries()) {
    const run = { rank: 16, tokens: 2048, learned: 512, devices }
    const ratio = trainingBytes(base, method, { device, bf16: true }, run) / predicted[index]!
    assert.ok(ratio > 0.99 && ratio < 1.01, `${id} ${method} on ${devices} ${device}: ${ratio}`)
  }
})

const tinyProgram = `
import json, sys, tempfile, torch
from pathlib import Path
from types import SimpleNamespace
from transformers import AutoConfig
from trainer.cli.prepare_base import sizes_of
from trainer.run import memory
from tests.families.checkpoints import write
memory.kernels.available = lambda device, dtype: device.type == "cpu"
results = []
for name in json.load(sys.stdin):
    with tempfile.TemporaryDirectory() as folder:
        write(name, Path(folder))
        config, sizes = AutoConfig.from_pretrained(folder), sizes_of(Path(folder))
        raw = json.loads((Path(folder) / "config.json").read_text())
    predictions = {}
    for device in ("cpu", "cuda"):
        for method in ("lora", "qlora", "full"):
            spec = SimpleNamespace(method=method, lora=SimpleNamespace(r=16, experts=False), projector=False)
            shape = memory.shape_of(config)
            predictions[f"{device} {method}"] = memory.predicted_bytes(shape, spec, 2, 2048, 512, torch.device(device))
    results.append({"config": raw, "sizes": sizes, "predictions": predictions})
print(json.dumps(results))
`
test(
  'of an added base, too, memory is what the trainer predicts: dense, of experts, of states, of both',
  full,
  async () => {
    const names = ['phi3', 'qwen3_moe', 'qwen3_5_text', 'nemotron_h', 'qwen3_5_moe', 'gemma4_moe']
    const run = promisify(execFile)(path.join(root, '.local/python/bin/python'), ['-c', tinyProgram], { cwd: root })
    run.child.stdin!.end(JSON.stringify(names))
    const results = JSON.parse((await run).stdout.trim().split('\n').at(-1)!)
    for (const [index, { config, sizes, predictions }] of results.entries()) {
      const shape = withSizes(shapeOf(config)!, Sizes.parse(sizes))
      for (const [key, predicted] of Object.entries<number>(predictions)) {
        const [device, method] = key.split(' ') as ['cpu' | 'cuda', Method]
        const base = { family: config.model_type, parameters: 0, active_parameters: 0, shape }
        const bytes = trainingBytes(base, method, { device: device === 'cuda' ? 'gpu' : 'cpu', bf16: true })
        assert.equal(Math.round(bytes), Math.round(predicted), `${names[index]}: ${key}`)
      }
    }
  },
)
