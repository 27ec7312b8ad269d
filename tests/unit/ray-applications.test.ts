import assert from 'node:assert/strict'
import { test } from 'node:test'
import { withoutTraceback } from '../../server/platform/ray/applications.ts'
import { autoscalingConfig } from '../../server/platform/ray/autoscaling-config.ts'
import { vllmApplication } from '../../server/platform/ray/vllm-application.ts'

const policy = {
  min_replicas: 0,
  max_replicas: 4,
  target_requests_per_replica: 8,
  scale_up_cooldown_ms: 30_000,
  scale_down_cooldown_ms: 300_000,
}

test('a deployment’s scaling becomes Serve’s, to zero only where that is allowed', () => {
  assert.deepEqual(autoscalingConfig(policy), {
    min_replicas: 0,
    max_replicas: 4,
    initial_replicas: 1,
    target_ongoing_requests: 8,
    upscale_delay_s: 30,
    downscale_delay_s: 300,
    downscale_to_zero_delay_s: 300,
  })
  assert.ok(!('downscale_to_zero_delay_s' in autoscalingConfig({ ...policy, min_replicas: 1 })))
})

test('of a start that failed, the error is told and not where it was raised', () => {
  const message =
    'It failed to start 3 times in a row. Error:\n[36mray::Replica()[39m\n  File "a.py", line 1, in f\n    ' +
    'g()\n    ^^^\nRuntimeError: Traceback (most recent call last):\n  File "b.py", line 2, in g\n    raise ' +
    'RuntimeError("no")\nRuntimeError: no'
  assert.equal(withoutTraceback(message), 'It failed to start 3 times in a row. Error: RuntimeError: no')
  assert.equal(withoutTraceback('It waits for a GPU.'), 'It waits for a GPU.')
})

test('vLLM gets the GPU, room for the adapter and the operator’s fields, and no token', () => {
  const described = (more: object) =>
    vllmApplication({
      id: 'dep',
      working_dir: 'gcs://package.zip',
      service: { url: 'http://service/internal/replicas/dep/model', token: 'of-files' },
      files: [],
      lora_rank: 12,
      accelerator_type: 'H100',
      overrides: {},
      policy,
      token: 'of-requests',
      weights: 'base=b sha256:0',
      written_at: 1,
      ...more,
    })
  const configOf = (more: object) => (described(more).args as { config: Record<string, unknown> }).config
  assert.deepEqual(configOf({}), {
    accelerator_type: 'H100',
    lora_config: { max_num_adapters_per_replica: 1 },
    // vLLM knows no rank of 12.
    engine_kwargs: { generation_config: 'vllm', enable_lora: true, max_loras: 1, max_lora_rank: 16 },
  })
  const overrides = { accelerator_type: null, engine_kwargs: { max_model_len: 512 } }
  assert.deepEqual(configOf({ lora_rank: undefined, overrides }), {
    engine_kwargs: { generation_config: 'vllm', max_model_len: 512 },
  })
  assert.ok(!JSON.stringify(described({})).includes('of-requests'))
})
