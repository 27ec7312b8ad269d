import assert from 'node:assert/strict'
import { test } from 'node:test'
import { checkAdapter } from '../../server/features/models/adapter-reader/check.ts'

test('an imported adapter of experts is refused with what to do, and not as one of another base', () => {
  const config = { peft_type: 'LORA', r: 4, lora_alpha: 8, target_parameters: ['mlp.experts.gate_up_proj'] }
  const tensor = { shape: [16, 64] }
  const tensors = { 'base_model.model.model.layers.0.mlp.experts.lora_A.weight': tensor } as never
  const check = (more: object) => () =>
    checkAdapter({ config: { ...config, ...more }, tensors } as never, 'test/moe', new Map(), ['q_proj'])
  assert.throws(check({}), /no linear layer: adapters of experts .* Train it with 'experts'/)
  assert.throws(check({ target_parameters: null }), /of another base\?/)
})
