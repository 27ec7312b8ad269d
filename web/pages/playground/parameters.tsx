import { Disclosure, Help } from '../../ui/disclosure.tsx'
import { Field, NumberInput, Textarea } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import type { Parameters } from './state.ts'

/** What all columns are asked with. */
export function ParametersPanel({ value, onChange }: { value: Parameters; onChange: (value: Parameters) => void }) {
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
        placeholder="default"
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
      return 'This is not JSON yet.'
    }
  }
  return (
    <Card title="Parameters">
      <div className="grid gap-4">
        <Field label="System prompt" optional>
          <Textarea value={value.system} onChange={(event) => set({ system: event.target.value })} rows={3} />
        </Field>
        {number(
          'temperature',
          'Temperature',
          { min: 0, max: 2, step: 0.1 },
          'How freely the model chooses: 0 always takes the likeliest token, so that the same question has one answer.',
        )}
        {number('max_tokens', 'Max tokens', { min: 1, max: 4096 }, 'The answer is cut at this many tokens.')}
        <Disclosure summary="More parameters" quiet>
          <div className="grid gap-4 pt-3">
            {number(
              'top_p',
              'Top p',
              { min: 0.01, max: 1, step: 0.05 },
              'Only the likeliest tokens that together have this probability may be chosen.',
            )}
            {number(
              'seed',
              'Seed',
              { min: 0, max: 2 ** 31 },
              'The same seed, question and parameters give the same answer.',
            )}
            {number(
              'presence_penalty',
              'Presence penalty',
              { min: -2, max: 2, step: 0.1 },
              'Makes tokens that are there already less likely.',
            )}
            {number(
              'frequency_penalty',
              'Frequency penalty',
              { min: -2, max: 2, step: 0.1 },
              'The same, more with each time that a token was used.',
            )}
            <Field label="Stop at" optional help="One text a line. The answer ends before it.">
              <Textarea value={value.stop} onChange={(event) => set({ stop: event.target.value })} rows={2} mono />
            </Field>
            <Field
              label="Answer's JSON schema"
              optional
              help="The answer is held to it while it is written."
              error={jsonError(value.schema)}
            >
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
              help="A list as OpenAI's API takes it. Calls are shown, nothing is run."
              error={jsonError(value.tools)}
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
