import { useEffect, useState } from 'react'
import { formatCount } from '../../lib/format.ts'
import { afterTyping } from '../../lib/typing.ts'
import { Select } from '../../ui/choices.tsx'
import { Field, NumberInput } from '../../ui/field.tsx'
import { type Cut, useBases } from './data.ts'

const typing_ms = 600

/** Chooses the base whose tokens are counted, and the length at which rows are cut. */
export function CutControls({
  cut,
  inForce,
  onChange,
}: {
  cut: Cut
  /** What the service counted with, where nothing was chosen. */
  inForce?: { model_id: string; max_length?: number | undefined } | undefined
  onChange: (cut: Cut) => void
}) {
  const bases = useBases()
  const [length, setLength] = useState<number | null>(cut.length ?? null)
  useEffect(() => {
    if ((length ?? undefined) === cut.length) return
    return afterTyping(() => onChange({ ...cut, length: length ?? undefined }), typing_ms)
  }, [length, cut, onChange])
  const model = cut.model ?? inForce?.model_id
  const context = bases.data?.find(({ id }) => id === model)?.context_length
  return (
    <div className="grid items-start gap-4 sm:grid-cols-2">
      <Field label="Model" help="Models read pieces of words, called tokens. Each base has its own.">
        <Select
          value={model ?? null}
          onChange={(next) => onChange({ ...cut, model: next })}
          placeholder={bases.isError ? 'The bases could not be listed' : 'Choose…'}
          choices={(bases.data ?? []).map(({ id, name }) => ({
            value: id,
            label: name,
            ...(name !== id && { note: id }),
          }))}
        />
      </Field>
      <Field
        label="Cut rows at"
        help={
          'Tokens (max_length). A job leaves out what is beyond.' +
          (context ? ` At most ${formatCount(context)} here.` : '')
        }
      >
        <NumberInput
          value={length}
          onChange={setLength}
          min={8}
          max={context}
          step={64}
          placeholder={inForce?.max_length ? formatCount(inForce.max_length) : 'as a job would'}
        />
      </Field>
    </div>
  )
}
