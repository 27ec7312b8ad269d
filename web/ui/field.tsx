// A control with its label, help and error, and the text controls.
import { Field as BaseField } from '@base-ui/react/field'
import { NumberField as BaseNumber } from '@base-ui/react/number-field'
import { Minus, Plus } from 'lucide-react'
import { type ComponentProps, type ReactNode, useRef } from 'react'
import { classes } from '../lib/classes.ts'
import { Button } from './button.tsx'

export const controlClass = classes(
  'w-full rounded-md bg-surface text-ink ring-1 ring-inset ring-edge transition-shadow duration-100',
  'focus-visible:outline-2 focus-visible:-outline-offset-1 data-invalid:ring-bad disabled:opacity-60 data-disabled:opacity-60',
  'any-pointer-coarse:text-[1rem]',
)
const heightClass = 'h-8.5 px-2.5 any-pointer-coarse:h-10'

/**
 * Around one control of this folder. The label, the help and the error are tied to it. `error` is what the API or the
 * page found wrong; a field of a request has its error in `TuneryError.param` or `details.field`.
 */
export function Field({
  label,
  help,
  error,
  optional,
  hideLabel,
  children,
  className,
}: {
  label: ReactNode
  help?: ReactNode
  error?: ReactNode
  /** Says so: fields are required unless they say otherwise. */
  optional?: boolean
  hideLabel?: boolean
  children: ReactNode
  className?: string
}) {
  return (
    <BaseField.Root invalid={Boolean(error)} className={classes('grid gap-1.5', className)}>
      <BaseField.Label className={hideLabel ? 'sr-only' : 'font-medium'}>
        {label}
        {optional && <span className="ml-1.5 text-sm font-normal text-muted">optional</span>}
      </BaseField.Label>
      {children}
      {error && (
        <BaseField.Error match className="text-sm text-bad">
          {error}
        </BaseField.Error>
      )}
      {help && <BaseField.Description className="text-sm text-muted">{help}</BaseField.Description>}
    </BaseField.Root>
  )
}

/** One line of text. Inside a `Field`, or with an `aria-label`. */
export function Input({ className, ...rest }: ComponentProps<'input'>) {
  return <BaseField.Control {...rest} className={classes(controlClass, heightClass, className)} />
}

/** Several lines. Grows with its text up to `maxRows`, where the browser can. */
export function Textarea({
  className,
  rows = 3,
  maxRows = 16,
  mono,
  ...rest
}: ComponentProps<'textarea'> & { maxRows?: number; mono?: boolean }) {
  return (
    <BaseField.Control
      render={<textarea {...rest} rows={rows} />}
      className={classes(
        controlClass,
        'field-sizing-content resize-y px-2.5 py-1.5',
        mono && 'font-mono text-sm',
        className,
      )}
      style={{ minHeight: `calc(${rows} * 1.375rem + 0.75rem)`, maxHeight: `calc(${maxRows} * 1.375rem + 0.75rem)` }}
    />
  )
}

/** A number with steps. `null` while it is empty. */
export function NumberInput({
  value,
  onChange,
  min,
  max,
  step,
  format,
  placeholder,
  disabled,
  ...rest
}: {
  value: number | null
  onChange: (value: number | null) => void
  min?: number
  max?: number
  step?: number | 'any'
  format?: Intl.NumberFormatOptions
  placeholder?: string
  disabled?: boolean
  'aria-label'?: string
}) {
  const stepClass =
    'grid w-8 place-items-center text-muted hover:bg-hover hover:text-ink data-disabled:opacity-40 [&_svg]:size-3.5 any-pointer-coarse:w-10'
  return (
    <BaseNumber.Root
      value={value}
      onValueChange={onChange}
      min={min}
      max={max}
      step={step}
      format={format}
      disabled={disabled}
    >
      <BaseNumber.Group className={classes(controlClass, 'flex h-8.5 overflow-hidden any-pointer-coarse:h-10')}>
        <BaseNumber.Input
          {...rest}
          placeholder={placeholder}
          className="focus-inset w-full min-w-0 flex-1 rounded-l-md bg-transparent px-2.5"
        />
        <BaseNumber.Decrement aria-label="Decrease" className={stepClass}>
          <Minus aria-hidden />
        </BaseNumber.Decrement>
        <BaseNumber.Increment aria-label="Increase" className={classes(stepClass, 'rounded-r-md')}>
          <Plus aria-hidden />
        </BaseNumber.Increment>
      </BaseNumber.Group>
    </BaseNumber.Root>
  )
}

/** Enter pressed twice, as a double click: what the form makes is made once. */
const twice_ms = 500

/** A form that sends by Enter, once at a time. Its buttons stand in `footer`, or last in `children`. */
export function Form({
  onSubmit,
  children,
  className,
}: {
  onSubmit: () => void
  children: ReactNode
  className?: string
}) {
  const sent_at = useRef(Number.NEGATIVE_INFINITY)
  return (
    <form
      noValidate
      className={classes('grid gap-4', className)}
      onSubmit={(event) => {
        event.preventDefault()
        event.stopPropagation()
        const isBusy = event.currentTarget.querySelector('button[type=submit][aria-busy=true]') !== null
        if (isBusy || event.timeStamp - sent_at.current < twice_ms) return
        sent_at.current = event.timeStamp
        onSubmit()
      }}
    >
      {children}
    </form>
  )
}

/** The buttons at the end of a form in a dialog: to leave it, and to send it. */
export function FormButtons({
  onCancel,
  busy,
  disabled,
  children,
}: {
  onCancel: () => void
  busy: boolean
  disabled?: boolean
  /** What sending does. */
  children: ReactNode
}) {
  return (
    <div className="flex justify-end gap-2">
      <Button onClick={onCancel}>Cancel</Button>
      <Button type="submit" variant="primary" busy={busy} disabled={disabled}>
        {children}
      </Button>
    </div>
  )
}
