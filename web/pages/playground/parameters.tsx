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
        <NumberField
          {...{ value, set }}
          name="temperature"
          label="Temperature"
          bounds={{ min: 0, max: 2, step: 0.1 }}
          help="Randomness. 0 always picks the most likely token, so the same question gets the same answer."
        />
        <NumberField
          {...{ value, set }}
          name="max_tokens"
          label="Max tokens"
          bounds={{ min: 1, max: 4096 }}
          help="Maximum length of the answer."
        />
        <Disclosure summary="More parameters" quiet>
          <More value={value} set={set} />
        </Disclosure>
      </div>
    </Card>
  )
}

interface PartProps {
  value: Parameters
  set: (change: Partial<Parameters>) => void
}

function More({ value, set }: PartProps) {
  return (
    <div className="grid gap-4 pt-3">
      <NumberField
        {...{ value, set }}
        name="top_p"
        label="Top p"
        bounds={{ min: 0.01, max: 1, step: 0.05 }}
        help="Only the most likely tokens whose probabilities add up to this are considered."
      />
      <NumberField
        {...{ value, set }}
        name="seed"
        label="Seed"
        bounds={{ min: 0, max: 2 ** 31 }}
        help="The same seed and parameters give the same answer."
      />
      <NumberField
        {...{ value, set }}
        name="presence_penalty"
        label="Presence penalty"
        bounds={{ min: -2, max: 2, step: 0.1 }}
        help="Makes tokens that already appeared less likely."
      />
      <NumberField
        {...{ value, set }}
        name="frequency_penalty"
        label="Frequency penalty"
        bounds={{ min: -2, max: 2, step: 0.1 }}
        help="The same, increasing with each use of a token."
      />
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
      <JsonField
        label="JSON schema"
        help="The answer must match it."
        value={value.schema}
        onChange={(schema) => set({ schema })}
        placeholder='{"type":"object","properties":{"urgency":{"enum":["low","high"]}},"required":["urgency"]}'
      />
      <JsonField
        label="Tools"
        help="In OpenAI format. Calls are shown, not run."
        value={value.tools}
        onChange={(tools) => set({ tools })}
        placeholder='[{"type":"function","function":{"name":"find","parameters":{"type":"object"}}}]'
      />
    </div>
  )
}

type NumberName = 'temperature' | 'top_p' | 'max_tokens' | 'seed' | 'presence_penalty' | 'frequency_penalty'

function NumberField({
  value,
  set,
  name,
  label,
  bounds,
  help,
}: PartProps & { name: NumberName; label: string; bounds: { min: number; max: number; step?: number }; help: string }) {
  return (
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
}

function jsonError(text: string): string | undefined {
  if (!text.trim()) return undefined
  try {
    JSON.parse(text)
    return undefined
  } catch {
    return 'Not valid JSON.'
  }
}

function JsonField({
  label,
  help,
  value,
  onChange,
  placeholder,
}: {
  label: string
  help: string
  value: string
  onChange: (value: string) => void
  placeholder: string
}) {
  return (
    <Field label={label} optional help={help} error={jsonError(value)} live>
      <Textarea
        value={value}
        onChange={(event) => onChange(event.target.value)}
        rows={3}
        mono
        placeholder={placeholder}
      />
    </Field>
  )
}
