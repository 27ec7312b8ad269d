import type { ReasoningEffort } from '../../../contract/chat.ts'
import { Button } from '../../ui/button.tsx'
import { Select } from '../../ui/choices.tsx'
import { Disclosure, Help } from '../../ui/disclosure.tsx'
import { Field, NumberInput, Textarea } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import type { Parameters } from './state.ts'

const efforts: ReasoningEffort[] = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max']

/** What all columns are asked with. */
export function ParametersPanel({
  value,
  onChange,
  trainedWith,
}: {
  value: Parameters
  onChange: (value: Parameters) => void
  /** The system prompt that the model was trained with; empty: none. */
  trainedWith: string
}) {
  const set = (change: Partial<Parameters>) => onChange({ ...value, ...change })
  const number = (
    name: 'temperature' | 'top_p' | 'max_tokens' | 'seed' | 'presence_penalty' | 'frequency_penalty',
    label: string,
    bounds: { min: number; max: number; step?: number },
    help: string,
  ) => (
    <Field
      label={
        <>
          {label} <Help word={label}>{help}</Help>
        </>
      }
    >
      <NumberInput
        value={value[name]}
        onChange={(next) => set({ [name]: next })}
        placeholder="Default"
        {...bounds}
        aria-label={label}
      />
    </Field>
  )
  const jsonError = (text: string) => {
    if (!text.trim()) return undefined
    try {
      JSON.parse(text)
      return undefined
    } catch {
      return 'Not valid JSON.'
    }
  }
  return (
    <Card title="Parameters">
      <div className="grid gap-4">
        <Field label="System prompt" optional>
          <Textarea value={value.system} onChange={(event) => set({ system: event.target.value })} rows={3} />
        </Field>
        {trainedWith && value.system !== trainedWith && (
          <div className="-mt-2">
            <Button size="sm" variant="quiet" className="-ml-2.5" onClick={() => set({ system: trainedWith })}>
              Use the training prompt
            </Button>
          </div>
        )}
        {number(
          'temperature',
          'Temperature',
          { min: 0, max: 2, step: 0.1 },
          'Randomness. 0 always picks the most likely token, so the same question gets the same answer.',
        )}
        {number('max_tokens', 'Max tokens', { min: 1, max: 4096 }, 'Maximum length of the answer.')}
        <Disclosure summary="More parameters" quiet>
          <div className="grid gap-4 pt-3">
            {number(
              'top_p',
              'Top p',
              { min: 0.01, max: 1, step: 0.05 },
              'Only the most likely tokens whose probabilities add up to this are considered.',
            )}
            {number('seed', 'Seed', { min: 0, max: 2 ** 31 }, 'The same seed and parameters give the same answer.')}
            {number(
              'presence_penalty',
              'Presence penalty',
              { min: -2, max: 2, step: 0.1 },
              'Makes tokens that already appeared less likely.',
            )}
            {number(
              'frequency_penalty',
              'Frequency penalty',
              { min: -2, max: 2, step: 0.1 },
              'The same, increasing with each use of a token.',
            )}
            <Field label="Reasoning effort" optional help="How much a model that thinks does so before it answers.">
              <Select<ReasoningEffort | 'default'>
                value={value.reasoning_effort ?? 'default'}
                onChange={(next) => set({ reasoning_effort: next === 'default' ? null : next })}
                choices={[{ value: 'default', label: 'Default' }, ...efforts.map((value) => ({ value, label: value }))]}
              />
            </Field>
            <Field label="Stop sequences" optional help="One per line. The answer ends before it.">
              <Textarea value={value.stop} onChange={(event) => set({ stop: event.target.value })} rows={2} mono />
            </Field>
            <Field label="JSON schema" optional help="The answer must match it." error={jsonError(value.schema)} live>
              <Textarea
                value={value.schema}
                onChange={(event) => set({ schema: event.target.value })}
                rows={3}
                mono
                placeholder='{"type":"object","properties":{"urgency":{"enum":["low","high"]}},"required":["urgency"]}'
              />
            </Field>
            <Field
              label="Tools"
              optional
              help="In OpenAI format. Calls are shown, not run."
              error={jsonError(value.tools)}
              live
            >
              <Textarea
                value={value.tools}
                onChange={(event) => set({ tools: event.target.value })}
                rows={3}
                mono
                placeholder='[{"type":"function","function":{"name":"find","parameters":{"type":"object"}}}]'
              />
            </Field>
          </div>
        </Disclosure>
      </div>
    </Card>
  )
}
