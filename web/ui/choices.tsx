// Controls that choose one value: select, combobox, slider. Those that switch are in toggles.tsx.
import { Combobox as BaseCombobox } from '@base-ui/react/combobox'
import { Select as BaseSelect } from '@base-ui/react/select'
import { Slider as BaseSlider } from '@base-ui/react/slider'
import { Check, ChevronDown, ChevronsUpDown, X } from 'lucide-react'
import { classes } from '../lib/classes.ts'
import { controlClass } from './field.tsx'
import { popupClass } from './popups.tsx'

export interface Choice<T extends string = string> {
  value: T
  label: string
  /** A second line in the list. */
  note?: string
  disabled?: boolean
}

const itemClass =
  'grid cursor-default grid-cols-[1rem_1fr] items-start gap-2 rounded-md px-2 py-1.5 outline-none select-none ' +
  'data-highlighted:bg-hover data-disabled:opacity-50 any-pointer-coarse:py-2.5'
const listClass = 'max-h-[min(22rem,var(--available-height))] overflow-y-auto overscroll-contain p-1 outline-none'
const triggerClass = classes(
  controlClass,
  'flex h-8.5 items-center justify-between gap-2 px-2.5 text-left select-none any-pointer-coarse:h-10',
)

function ChoiceText({ choice }: { choice: Choice }) {
  return (
    <span className="min-w-0 wrap-anywhere">
      {choice.label}
      {choice.note && <span className="block text-sm text-muted">{choice.note}</span>}
    </span>
  )
}

/** One of a few. Inside a `Field`, or with an `aria-label`. */
export function Select<T extends string>({
  value,
  onChange,
  choices,
  placeholder = 'Choose…',
  disabled,
  className,
  ...rest
}: {
  value: T | null
  onChange: (value: T) => void
  choices: readonly Choice<T>[]
  placeholder?: string
  disabled?: boolean
  className?: string
  'aria-label'?: string
}) {
  return (
    <BaseSelect.Root
      items={choices}
      value={value}
      disabled={disabled}
      onValueChange={(next) => next !== null && onChange(next as T)}
    >
      <BaseSelect.Trigger {...rest} className={classes(triggerClass, className)}>
        <BaseSelect.Value placeholder={placeholder} className="truncate data-placeholder:text-faint" />
        <BaseSelect.Icon className="text-muted [&_svg]:size-4">
          <ChevronsUpDown aria-hidden />
        </BaseSelect.Icon>
      </BaseSelect.Trigger>
      <BaseSelect.Portal>
        <BaseSelect.Positioner
          sideOffset={4}
          collisionPadding={8}
          alignItemWithTrigger={false}
          className="z-50 outline-none"
        >
          <BaseSelect.Popup className={classes(popupClass, 'min-w-(--anchor-width) max-w-(--available-width)')}>
            <BaseSelect.List className={listClass}>
              {choices.map((choice) => (
                <BaseSelect.Item
                  key={choice.value}
                  value={choice.value}
                  disabled={choice.disabled}
                  className={itemClass}
                >
                  <BaseSelect.ItemIndicator className="mt-0.75 text-accent-ink [&_svg]:size-4">
                    <Check aria-hidden />
                  </BaseSelect.ItemIndicator>
                  <BaseSelect.ItemText className="col-start-2">
                    <ChoiceText choice={choice} />
                  </BaseSelect.ItemText>
                </BaseSelect.Item>
              ))}
            </BaseSelect.List>
          </BaseSelect.Popup>
        </BaseSelect.Positioner>
      </BaseSelect.Portal>
    </BaseSelect.Root>
  )
}

/** One of many, found by typing. `empty` is what stands where nothing fits. */
export function Combobox<T extends string>({
  value,
  onChange,
  choices,
  placeholder,
  empty = 'Nothing fits',
  clearable,
  disabled,
  ...rest
}: {
  value: T | null
  onChange: (value: T | null) => void
  choices: readonly Choice<T>[]
  placeholder?: string
  empty?: string
  clearable?: boolean
  disabled?: boolean
  'aria-label'?: string
}) {
  const chosen = choices.find((choice) => choice.value === value) ?? null
  const iconClass = 'grid h-full w-7 place-items-center rounded-sm text-muted hover:text-ink [&_svg]:size-4'
  return (
    <BaseCombobox.Root
      items={choices}
      value={chosen}
      disabled={disabled}
      onValueChange={(next) => onChange(next?.value ?? null)}
      isItemEqualToValue={(one, other) => one.value === other.value}
    >
      <BaseCombobox.InputGroup className="relative">
        <BaseCombobox.Input
          {...rest}
          placeholder={placeholder}
          className={classes(controlClass, 'h-8.5 pr-14 pl-2.5 any-pointer-coarse:h-10')}
        />
        <div className="absolute inset-y-0 right-1 flex">
          {clearable && (
            <BaseCombobox.Clear aria-label="Clear" className={iconClass}>
              <X aria-hidden />
            </BaseCombobox.Clear>
          )}
          <BaseCombobox.Trigger aria-label="Show all" className={iconClass}>
            <ChevronDown aria-hidden />
          </BaseCombobox.Trigger>
        </div>
      </BaseCombobox.InputGroup>
      <BaseCombobox.Portal>
        <BaseCombobox.Positioner sideOffset={4} collisionPadding={8} className="z-50 outline-none">
          <BaseCombobox.Popup className={classes(popupClass, 'w-(--anchor-width) max-w-(--available-width)')}>
            <BaseCombobox.Empty>
              <div className="px-3 py-4 text-muted">{empty}</div>
            </BaseCombobox.Empty>
            <BaseCombobox.List className={classes(listClass, 'data-empty:p-0')}>
              {(choice: Choice<T>) => (
                <BaseCombobox.Item key={choice.value} value={choice} disabled={choice.disabled} className={itemClass}>
                  <BaseCombobox.ItemIndicator className="mt-0.75 text-accent-ink [&_svg]:size-4">
                    <Check aria-hidden />
                  </BaseCombobox.ItemIndicator>
                  <span className="col-start-2 min-w-0">
                    <ChoiceText choice={choice} />
                  </span>
                </BaseCombobox.Item>
              )}
            </BaseCombobox.List>
          </BaseCombobox.Popup>
        </BaseCombobox.Positioner>
      </BaseCombobox.Portal>
    </BaseCombobox.Root>
  )
}

/** A number by feel; the value stands beside it. */
export function Slider({
  value,
  onChange,
  min,
  max,
  step,
  label,
  format = String,
  disabled,
}: {
  value: number
  onChange: (value: number) => void
  min: number
  max: number
  step: number
  label: string
  format?: (value: number) => string
  disabled?: boolean
}) {
  return (
    <BaseSlider.Root
      value={value}
      onValueChange={(next) => onChange(next as number)}
      min={min}
      max={max}
      step={step}
      disabled={disabled}
      className="grid gap-1"
    >
      <div className="flex justify-between gap-4">
        <span className="font-medium">{label}</span>
        <span className="text-muted">{format(value)}</span>
      </div>
      <BaseSlider.Control className="flex h-6 touch-none items-center select-none data-disabled:opacity-50">
        <BaseSlider.Track className="h-1.5 w-full rounded-full bg-line">
          <BaseSlider.Indicator className="rounded-full bg-accent" />
          <BaseSlider.Thumb
            aria-label={label}
            getAriaValueText={(_text, value) => format(value)}
            className={
              'size-4 rounded-full bg-white shadow-pop ring-1 ring-edge has-focus-visible:outline-2 ' +
              'has-focus-visible:outline-offset-2 has-focus-visible:outline-focus'
            }
          />
        </BaseSlider.Track>
      </BaseSlider.Control>
    </BaseSlider.Root>
  )
}
