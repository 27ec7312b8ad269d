import assert from 'node:assert/strict'
import { test } from 'node:test'
import { checkAdapter } from '../../server/features/models/adapter-reader/check.ts'

test('experts of an imported adapter are left to the trainer, and what is beside them is checked', () => {
  const config = { peft_type: 'LORA', r: 4, lora_alpha: 8, target_parameters: ['mlp.experts.down_proj', 'gate.weight'] }
  const layer = 'model.layers.0.self_attn.q_proj'
  const shapes = new Map([
    [`${layer}.weight`, [64, 64]],
    ['model.layers.0.mlp.gate.weight', [4, 64]],
    ['model.layers.0.mlp.experts.0.down_proj.weight', [64, 32]],
  ])
  const pair = (name: string, a: number[], b: number[]) => ({
    [`base_model.model.${name}.lora_A.weight`]: { shape: a },
    [`base_model.model.${name}.lora_B.weight`]: { shape: b },
  })
  const tensors = {
    ...pair('model.layers.0.mlp.experts', [16, 32], [64, 16]),
    ...pair('model.layers.0.mlp.gate', [4, 64], [4, 4]),
    ...pair(layer, [4, 64], [64, 4]),
  }
  const check = (more: object, other: object = {}) =>
    checkAdapter({ config: { ...config, ...more }, tensors: { ...tensors, ...other } } as never, 'test/moe', shapes, [
      'q_proj',
    ])
  assert.deepEqual(check({}), { r: 4, alpha: 8, target_modules: ['q_proj'] })
  assert.throws(() => check({ target_parameters: null }), /of another base\?/)
  assert.throws(() => check({}, pair(layer, [5, 64], [64, 5])), /with rank 4 it must be/)
})
