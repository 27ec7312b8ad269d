import { Tooltip as BaseTooltip } from '@base-ui/react/tooltip'
import type { ReactElement, ReactNode } from 'react'
import { classes } from '../lib/classes.ts'

/** A few words on a control. Never the only place of something: touch has no hover. */
export function Tooltip({
  text,
  children,
  side = 'top',
}: {
  text: ReactNode
  children: ReactElement
  side?: 'top' | 'bottom' | 'left' | 'right'
}) {
  return (
    <BaseTooltip.Root>
      <BaseTooltip.Trigger render={children} />
      <BaseTooltip.Portal>
        <BaseTooltip.Positioner side={side} sideOffset={6} collisionPadding={8} className="z-50">
          <BaseTooltip.Popup
            className={classes(
              'max-w-72 rounded-md bg-ink px-2 py-1 text-sm text-canvas shadow-pop',
              'transition-opacity duration-100 data-starting-style:opacity-0 data-ending-style:opacity-0 ' +
                'data-instant:transition-none',
            )}
          >
            {text}
          </BaseTooltip.Popup>
        </BaseTooltip.Positioner>
      </BaseTooltip.Portal>
    </BaseTooltip.Root>
  )
}
