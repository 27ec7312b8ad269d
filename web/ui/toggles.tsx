// Controls that switch: checkbox, radio, switch, segments.
import { Checkbox as BaseCheckbox } from '@base-ui/react/checkbox'
import { Switch as BaseSwitch } from '@base-ui/react/switch'
import { Toggle } from '@base-ui/react/toggle'
import { ToggleGroup } from '@base-ui/react/toggle-group'
import { Check, Minus } from 'lucide-react'
import type { ReactNode } from 'react'
import { classes } from '../lib/classes.ts'

/** Yes or no, as part of a form or a list. */
export function Checkbox({
  checked,
  onChange,
  label,
  help,
  indeterminate,
  disabled,
  hideLabel,
}: {
  checked: boolean
  onChange: (checked: boolean) => void
  label: ReactNode
  help?: ReactNode
  /** Some of those below it. */
  indeterminate?: boolean
  disabled?: boolean
  hideLabel?: boolean
}) {
  return (
    <label className="inline-flex items-start gap-2.5 align-middle">
      <BaseCheckbox.Root
        checked={checked}
        onCheckedChange={onChange}
        indeterminate={indeterminate}
        disabled={disabled}
        className={classes(
          'grid size-4 shrink-0 place-items-center rounded-sm bg-surface text-on-accent ring-1 ring-edge ring-inset',
          !hideLabel && 'mt-0.75',
          'data-checked:bg-accent data-checked:ring-accent data-indeterminate:bg-accent data-indeterminate:ring-accent',
          'data-disabled:opacity-50 any-pointer-coarse:size-5',
        )}
      >
        <BaseCheckbox.Indicator className="[&_svg]:size-3.5 [&_svg]:stroke-3">
          {indeterminate ? <Minus aria-hidden /> : <Check aria-hidden />}
        </BaseCheckbox.Indicator>
      </BaseCheckbox.Root>
      <span className={hideLabel ? 'sr-only' : 'min-w-0'}>
        {label}
        {help && <span className="block text-sm text-muted">{help}</span>}
      </span>
    </label>
  )
}

/**
 * One of a group of the same name, inside its label, which shows the focus. The browser's own radio is grey in the
 * dark.
 */
export const Radio = (props: {
  name: string
  value: string
  checked: boolean
  onChange: () => void
  disabled?: boolean
}) => (
  <input
    type="radio"
    {...props}
    className={
      'grid size-4 shrink-0 appearance-none place-items-center rounded-full bg-surface outline-none ring-1 ring-edge ' +
      'ring-inset before:size-1.5 before:rounded-full checked:bg-accent checked:ring-accent ' +
      'checked:before:bg-on-accent ' +
      'disabled:opacity-50 any-pointer-coarse:size-5 forced-colors:appearance-auto'
    }
  />
)

/** On or off, with effect at once. */
export function Switch({
  checked,
  onChange,
  label,
  help,
  disabled,
}: {
  checked: boolean
  onChange: (checked: boolean) => void
  label: ReactNode
  help?: ReactNode
  disabled?: boolean
}) {
  return (
    <label className="flex items-start justify-between gap-4">
      <span className="min-w-0">
        {label}
        {help && <span className="block text-sm text-muted">{help}</span>}
      </span>
      <BaseSwitch.Root
        checked={checked}
        onCheckedChange={onChange}
        disabled={disabled}
        className={classes(
          'mt-0.5 flex h-5 w-9 shrink-0 rounded-full bg-edge p-0.5 transition-colors duration-150',
          'data-checked:bg-accent data-disabled:opacity-50',
        )}
      >
        <BaseSwitch.Thumb
          className={'size-4 rounded-full bg-white transition-transform duration-150 data-checked:translate-x-4'}
        />
      </BaseSwitch.Root>
    </label>
  )
}

/** One of two to five views, all visible: `linear | log`. */
export function Segments<T extends string>({
  value,
  onChange,
  choices,
  label,
  size = 'sm',
}: {
  value: T
  onChange: (value: T) => void
  choices: readonly { value: T; label: ReactNode; title?: string }[]
  label: string
  size?: 'sm' | 'md'
}) {
  return (
    <ToggleGroup
      aria-label={label}
      value={[value]}
      onValueChange={(next) => {
        const chosen = next[0] as T | undefined
        if (chosen !== undefined) onChange(chosen)
      }}
      className="inline-flex gap-0.5 rounded-md bg-hover p-0.5"
    >
      {choices.map((choice) => (
        <Toggle
          key={choice.value}
          value={choice.value}
          title={choice.title}
          className={classes(
            'rounded-sm font-medium whitespace-nowrap text-muted select-none hover:text-ink',
            'data-pressed:bg-surface data-pressed:text-ink data-pressed:ring-1 data-pressed:ring-line',
            size === 'sm' ? 'h-6 px-2 text-sm any-pointer-coarse:h-8' : 'h-7.5 px-3 any-pointer-coarse:h-9',
          )}
        >
          {choice.label}
        </Toggle>
      ))}
    </ToggleGroup>
  )
}
