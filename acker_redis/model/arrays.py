"""Type aliases of numpy arrays."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
